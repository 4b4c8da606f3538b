"""The formats of other tools: one file each. `fastrecord.interchange` says what a format is."""
