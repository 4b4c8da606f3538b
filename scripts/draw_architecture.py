"""Draw docs/img/architecture.svg and node.svg: python scripts/draw_architecture.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

OUT = Path(__file__).parents[1] / "docs" / "img"
LINE, TEXT, FAINT = "#5b6472", "#1f2430", "#626b79"
WRITE, READ, KEPT, OUTSIDE = "#e3f0e6", "#e2ecf8", "#f7ecd5", "#f1f2f4"


class Box(NamedTuple):
    """A box with a title and lines of text; the last line names the folders that do the work."""

    x: int
    y: int
    w: int
    h: int
    fill: str
    title: str
    lines: tuple[str, ...]
    folders: str = ""

    def draw(self) -> str:
        """Return the box as SVG."""
        middle = self.x + self.w / 2
        rows = [(self.title, f'class="title" fill="{TEXT}"'), *((line, f'fill="{TEXT}"') for line in self.lines)]
        if self.folders:
            rows.append((self.folders, f'class="mono" fill="{FAINT}"'))
        top = self.y + (self.h - 18 * len(rows)) / 2 + 14
        shape = f'<rect x="{self.x}" y="{self.y}" width="{self.w}" height="{self.h}" rx="6" fill="{self.fill}" '
        texts = (
            f'<text x="{middle:g}" y="{top + 18 * i:g}" text-anchor="middle" {style}>{escape(text)}</text>'
            for i, (text, style) in enumerate(rows)
        )
        return "\n".join([f'{shape}stroke="{LINE}"/>', *texts])


def arrow(*points: tuple[int, int], dashed: bool = False) -> str:
    """Return a line through the points with an arrowhead at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#head)"{dash}/>'


def label(x: int, y: int, text: str) -> str:
    """Return a line of faint text that begins at (x, y)."""
    return f'<text x="{x}" y="{y}" fill="{FAINT}">{escape(text)}</text>'


def bar(x: int, y: int, parts: list[tuple[str, int]], height: int) -> str:
    """Return the parts of the file side by side, each (name, width)."""
    drawn = []
    for name, width in parts:
        drawn.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{KEPT}" stroke="{LINE}"/>')
        middle = x + width / 2
        drawn.append(f'<text x="{middle:g}" y="{y + 24}" text-anchor="middle" fill="{TEXT}">{escape(name)}</text>')
        x += width
    return "\n".join(drawn)


def architecture() -> str:
    """Return the picture of the way from input to training as SVG."""
    commit = [("payloads", 130), ("column chunks", 120), ("metadata", 80), ("directory", 80), ("footer", 60)]
    parts = [
        label(20, 28, "Writing"),
        Box(20, 40, 190, 92, OUTSIDE, "Input", ("image folder, CSV list,", "pairs; or your own loop")).draw(),
        Box(
            265, 40, 280, 92, WRITE, "Pack", ("list, read ahead, check, recode", "on threads"), "pack/ (Python, core)"
        ).draw(),
        Box(
            600,
            40,
            360,
            92,
            WRITE,
            "Writer",
            ("check values, compress, append;", "commit: sync, footer, sync"),
            "write/",
        ).draw(),
        arrow((210, 86), (263, 86)),
        arrow((545, 86), (598, 86)),
        arrow((115, 132), (115, 152), (700, 152), (700, 134), dashed=True),
        label(126, 147, "Writer.append, extend"),
        # The file.
        arrow((820, 132), (820, 192)),
        label(20, 186, "train.frec: grows only; a commit is final"),
        bar(20, 196, [("superblock", 90), *commit], 38),
        f'<rect x="580" y="196" width="380" height="38" fill="none" stroke="{LINE}" stroke-dasharray="5 4"/>',
        f'<text x="770" y="220" text-anchor="middle" fill="{FAINT}">commit 2 ...</text>',
        # Files from files.
        arrow((160, 234), (160, 262), dashed=True),
        arrow((420, 234), (420, 262), dashed=True),
        Box(20, 264, 280, 74, WRITE, "Files from files", ("merge, split, shuffle, compact",), "files/, copy/").draw(),
        Box(320, 264, 200, 74, READ, "Check and save", ("verify, repair",), "files/, repair/").draw(),
        arrow((820, 234), (820, 374)),
        # Readers.
        label(20, 366, "Reading"),
        Box(
            20,
            376,
            300,
            92,
            READ,
            "Sampler",
            ("(seed, epoch, position)", "to index in the data set"),
            "sampler/, order/",
        ).draw(),
        Box(
            360, 376, 240, 92, READ, "Data set", ("views and several files:", "index to file and record"), "dataset/"
        ).draw(),
        Box(
            640,
            376,
            320,
            92,
            READ,
            "Reader",
            ("index, payloads, checksums,", "decompression; views or copies"),
            "read/",
        ).draw(),
        arrow((320, 422), (358, 422)),
        arrow((600, 422), (638, 422)),
        Box(
            640, 492, 320, 74, READ, "Loader threads", ("decode, crop, resize, stack",), "loader/, load/, image/"
        ).draw(),
        Box(360, 492, 240, 74, OUTSIDE, "Batch", ("tensors, pinned or on a device",)).draw(),
        Box(20, 492, 300, 74, OUTSIDE, "Training step", (), "your loop, or train/").draw(),
        arrow((800, 468), (800, 490)),
        arrow((640, 529), (602, 529)),
        arrow((360, 529), (322, 529)),
    ]
    return picture(980, 582, parts)


def node() -> str:
    """Return the picture of a node that reads from an object store as SVG."""
    parts = [
        label(20, 28, "A region"),
        Box(
            20, 40, 260, 170, KEPT, "Object store", ("dataset.json", "train-00000.frec", "train-00001.frec", "...")
        ).draw(),
        label(360, 28, "A node; the others are alike, and no message passes between them"),
        f'<rect x="360" y="40" width="600" height="412" rx="6" fill="#ffffff" stroke="{LINE}" stroke-dasharray="5 4"/>',
        Box(
            400,
            62,
            240,
            126,
            WRITE,
            "Bringing",
            ("at most 16 requests a process,", "retried, checked against the", "file's own checksums"),
            "store/",
        ).draw(),
        Box(
            700,
            62,
            240,
            126,
            READ,
            "The order",
            ("(seed, epoch, position): which", "record each rank needs when,", "in all epochs to come"),
            "sampler/",
        ).draw(),
        Box(
            400,
            232,
            540,
            74,
            KEPT,
            "Cache: a folder on a local disk, at most cache_size bytes",
            ("sparse copies of shards, and marks of the parts that were checked",),
        ).draw(),
        *(
            Box(
                400 + 140 * rank, 350, 120, 82, READ, f"Rank {rank}" if rank < 3 else "Rank n", ("loader", "threads")
            ).draw()
            for rank in range(4)
        ),
        arrow((280, 125), (398, 125)),
        label(300, 116, "ranges"),
        arrow((698, 125), (642, 125)),
        arrow((520, 188), (520, 230)),
        *(arrow((460 + 140 * rank, 306), (460 + 140 * rank, 348)) for rank in range(4)),
        label(20, 252, "What several ranks need is"),
        label(20, 270, "downloaded once for the node."),
        label(20, 306, "When room is needed, what is"),
        label(20, 324, "needed again last is given up."),
    ]
    return picture(980, 472, parts)


def picture(width: int, height: int, parts: list[str]) -> str:
    """Return a picture of parts as SVG."""
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    size, sides = f"{width} {height}", f'width="{width}" height="{height}"'
    font = "font: 13px 'DejaVu Sans', Helvetica, Arial, sans-serif;"
    title = ".title { font-weight: bold; }"
    mono = ".mono { font-size: 12px; font-family: 'DejaVu Sans Mono', monospace; }"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" {sides}>',
            f"<style>text {{ {font} }} {title} {mono}</style>",
            f'<defs>{head}<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    for draw in (architecture, node):
        (OUT / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
