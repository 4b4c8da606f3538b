"""What single values look like: as a short text, as a small picture, in a notebook.

Imports schemas and the layers below them; Pillow and numpy, but not torch.
"""
