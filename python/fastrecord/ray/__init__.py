"""fastrecord on Ray: data sets written, read and packed by the tasks of a cluster. docs/ray.md has examples.

Needs the extra `fastrecord[ray]`. Nothing else in fastrecord imports this package. Imports `packing`,
`files`, `dataset`, `interchange` and `schema`; inside, `import ray` is Ray itself.
"""

from fastrecord.interchange.libraries import library

library("ray.data", "ray", "fastrecord.ray")  # names the pip line if it is missing

from fastrecord.ray.packing import pack  # noqa: E402 - after the check
from fastrecord.ray.reading import read_frec  # noqa: E402
from fastrecord.ray.workers import Workers  # noqa: E402
from fastrecord.ray.writing import write_frec  # noqa: E402

__all__ = ["Workers", "pack", "read_frec", "write_frec"]
