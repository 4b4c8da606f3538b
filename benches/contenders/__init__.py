"""The formats that benches/experiments/formats compares, each written and read by its own library.

- `Source` has the records: bytes, a label and a key.
- `Store` is a file or folder of one format; each module beside it has its class, which writes and
  reads as its library's documentation recommends for speed.
- `FORMATS` names them. A class is imported only in the contender's process: its library may be
  missing.
"""

from benches.contenders.source import Source
from benches.contenders.store import Store

# Name -> module and class in this folder. Ours come first.
FORMATS = {
    "fastrecord": "frec:Frec",
    "class folder": "folder:ClassFolder",
    "LMDB": "lmdb:Lmdb",
    "TFRecord": "tfrecord:TfRecord",
    "RecordIO": "recordio:RecordIo",
    "HDF5": "hdf5:Hdf5",
    ".pth": "pth:Pth",
    "N5": "chunked:N5",
    "zarr": "chunked:Zarr",
    "WebDataset": "webdataset:WebDataset",
    "ArrayRecord": "arrayrecord:ArrayRecord",
    "parquet": "arrow:Parquet",
    "Arrow": "arrow:Arrow",
    "Hugging Face datasets": "arrow:HuggingFace",
    "FFCV": "ffcv:Ffcv",
    "MosaicML MDS": "mds:Mds",
    "LitData": "litdata:LitData",
    "numpy memmap": "memmap:Memmap",
}

__all__ = ["FORMATS", "Source", "Store"]
