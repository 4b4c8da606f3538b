"""Files and data sets that appear at once: staged, noted in a journal, committed by one step, settled after a kill.

A `Staging` is one file or folder. A data set appears with its manifest, which `LocalSet` and `RemoteSet`
read and replace, in a folder and in an object store. `ShardWrite` adds shards that several processes
make, `Upload` shards that are sent as they are made; each has a journal that says how it ends after a kill.
"""
