"""Files cannot run code: the package never unpickles or evaluates what it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastrecord
from tests.support.child import run_child

PACKAGE = Path(fastrecord.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Modules that build objects by running code from the bytes.
UNSAFE_MODULES = {"cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve", "yaml"}
UNSAFE_BUILTINS = {"__import__", "compile", "eval", "exec"}
# The name of an exception of torch.load; messages between the ranks of a run, and of a process to its helper;
# what others unpickle. What reads foreign pickles may not use a method of its base that finds classes.
USED_OF_PICKLE = {
    ("formats/lmdb.py", "dumps"),
    ("formats/torch.py", "UnpicklingError"),
    *(("interchange/files/unpickle.py", name) for name in ("MEMOIZE", "PickleError", "STOP", "_Unpickler")),
    ("store/helper.py", "dump"),
    ("store/helper.py", "load"),
    ("train/checkpoint.py", "UnpicklingError"),
    ("train/batches/open.py", "dumps"),
    ("train/batches/open.py", "loads"),
}


def unsafe(name: str, tree: ast.Module) -> Iterator[str]:
    """Return what in a module could run its input, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield f"{name}:{node.lineno}: from {node.module} import"
        if isinstance(node, ast.Import):
            for module in (each for each in node.names if each.name.split(".")[0] in UNSAFE_MODULES):
                used = {(name, attribute) for attribute in attributes(tree, module.asname or module.name)}
                if not used <= USED_OF_PICKLE:
                    yield f"{name}:{node.lineno}: import {module.name}"
        if not isinstance(node, ast.Call):
            continue
        called, options = ast.unparse(node.func), {option.arg: ast.unparse(option.value) for option in node.keywords}
        if called in UNSAFE_BUILTINS:
            yield f"{name}:{node.lineno}: {called}()"
        if called == "torch.load" and options.get("weights_only") != "True":
            yield f"{name}:{node.lineno}: torch.load() of whole objects"
        if called in {"np.load", "numpy.load"} or options.get("allow_pickle", "False") != "False":
            yield f"{name}:{node.lineno}: {called}() may unpickle"


def attributes(tree: ast.Module, module: str) -> set[str]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == module}


def test_no_module_of_the_package_unpickles_or_evaluates() -> None:
    assert len(SOURCES) > 40
    for source in SOURCES:
        name = source.relative_to(PACKAGE).as_posix()
        assert list(unsafe(name, ast.parse(source.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.loads(data)",
        "import pickle as p; p.loads(data)",
        "from pickle import loads",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
    ],
)
def test_the_check_above_sees_what_it_looks_for(line: str) -> None:
    assert len(list(unsafe("train/checkpoint.py", ast.parse(line)))) == 1


@pytest.mark.timeout(400)
def test_nothing_that_a_file_says_is_run(tmp_path: Path) -> None:
    # The audit events of running code. A plain file goes first through all steps: imports run code.
    printed = run_child(
        """
        import contextlib, io, json, pickle
        from fastrecord.cli import cli

        class Evil:
            def __reduce__(self):
                return os.mkdir, ("ran",)

        EVIL = pickle.dumps(Evil())
        TEXTS = ["__import__('os').mkdir('ran')", "{0.__class__.__init__.__globals__}", "%(x)s",
                 "$(mkdir ran)", "`mkdir ran`", "!!python/object/apply:os.mkdir [ran]", "<script>",
                 "../../ran", "| mkdir ran", "\\x1b]0;x\\x07"]

        def make(path, texts, data):
            schema = fr.Schema({"data": fr.bytes_(), "text": fr.string(), "doc": fr.json(), "label": "int64",
                                "list": fr.list_(fr.bytes_())})
            metadata = {"classes": texts, "py/object": "os.mkdir", "__reduce__": texts, "text": texts}
            with fr.Writer(path, schema, metadata=metadata) as writer:
                for number, text in enumerate(texts):
                    doc = {"py/reduce": text, "__class__": text}
                    writer.append({"data": data, "text": text, "doc": doc, "label": number, "list": [data, data]})

        def read(path):
            with fr.Reader(path) as reader:
                for record in reader:
                    repr(record)
                repr(reader.metadata), repr(reader.schema), repr(reader)
            dataset = fr.FastRecordDataset(path, decode=None)
            repr([dataset[i] for i in range(len(dataset))])
            repr(dataset.classes)
            for command in (["info"], ["ls"], ["verify"]):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    cli([*command, path], standalone_mode=False)

        events, armed = [], False
        RUNS = ("exec", "compile", "pickle.find_class", "marshal.loads", "import", "os.system",
                "os.exec", "os.posix_spawn", "os.mkdir", "subprocess.Popen", "code.__new__", "function.__new__")
        def hook(event, arguments):
            if armed and event in RUNS:
                events.append((event, repr(arguments)[:200]))

        make("plain.frec", ["\\x1b\u00e9", "b", "c", "d", "e", "f", "g", "h", "i", "j"], b"plain")
        make("evil.frec", TEXTS, EVIL)
        sys.addaudithook(hook)
        read("plain.frec")
        armed = True
        read("evil.frec")
        seen = list(events)
        with contextlib.suppress(FileExistsError):
            pickle.loads(EVIL)
        armed = False
        print(json.dumps([seen, os.path.exists("ran"), len(events) > len(seen)]))
        """,
        tmp_path,
        timeout=300,
    )
    # The last one shows that the hook works.
    assert printed.splitlines()[-1] == "[[], true, true]"
