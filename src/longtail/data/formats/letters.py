"""`letters-lt`: the letters of the alphabet, as often as they occur in English.

Nothing is stored: the glyphs come from the text fonts that matplotlib ships. They are turned,
sheared, scaled, shifted and noised, the same way in every run. The tail is real, and small enough
for a demo of a minute.
"""

import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.data.sources import MemoryStore, Part, Source

# percent of the letters in English text
FREQUENCIES = {
    **{"e": 12.702, "t": 9.056, "a": 8.167, "o": 7.507, "i": 6.966, "n": 6.749, "s": 6.327},
    **{"h": 6.094, "r": 5.987, "d": 4.253, "l": 4.025, "c": 2.782, "u": 2.758, "m": 2.406},
    **{"w": 2.360, "f": 2.228, "g": 2.015, "y": 1.974, "p": 1.929, "b": 1.492, "v": 0.978},
    **{"k": 0.772, "j": 0.153, "x": 0.150, "q": 0.095, "z": 0.074},
}
LETTERS_READ = 3000
"""Length of the text whose letters are the training set."""
TEST_EACH = 100
SIZE = 16
CANVAS = 64
"""Pixels a glyph is drawn at, once, before it is turned and shrunk."""
POINTS = 56
# symbol fonts and fonts without all letters are left out
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSansMono-Oblique"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)


@dataclass(frozen=True)
class Wobble:
    """How far a letter strays from its glyph."""

    turn: float = 15.0
    """Largest rotation either way, in degrees."""
    shear: float = 0.2
    """Largest horizontal shear, as a fraction of the height."""
    scale: float = 0.15
    """Largest change of size either way, along each axis on its own."""
    shift: float = 0.15
    """Largest shift either way, as a fraction of half the image."""
    noise: float = 0.18
    """Standard deviation of the noise, where paper is 0 and ink 1."""


WOBBLE = Wobble()


def open_source(*, wobble: Wobble = WOBBLE) -> Source:
    """Draw 26 classes of grey 16x16 letters: 3,000 as in a text, and a balanced test set."""
    names = tuple(string.ascii_lowercase)
    train = torch.tensor([round(LETTERS_READ * FREQUENCIES[name] / 100) for name in names])
    glyphs = _draw_glyphs(names)  # (26, fonts, 64, 64)
    parts = {}
    for seed, (part, counts) in enumerate((("train", train), ("test", [TEST_EACH] * 26))):
        labels = torch.repeat_interleave(torch.arange(26), torch.as_tensor(counts))
        inputs = _draw_letters(glyphs, labels, wobble, seed=seed)
        parts[part] = Part.whole(MemoryStore(inputs, f"letters-lt {part}"), labels)
    return Source(names, parts)


def _draw_glyphs(names: tuple[str, ...]) -> Tensor:
    """Draw each letter in each font, (26, fonts, 64, 64); ink is 1."""
    import matplotlib  # only for the path of its fonts
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    layout = ImageFont.Layout.BASIC  # every build of Pillow has this one
    glyphs = np.zeros((len(names), len(FONTS), CANVAS, CANVAS), dtype=np.float32)
    for column, font_name in enumerate(FONTS):
        font = ImageFont.truetype(folder / f"{font_name}.ttf", POINTS, layout_engine=layout)
        for row, letter in enumerate(names):
            image = Image.new("L", (CANVAS, CANVAS))
            left, top, right, bottom = font.getbbox(letter)
            corner = ((CANVAS - left - right) / 2, (CANVAS - top - bottom) / 2)
            ImageDraw.Draw(image).text(corner, letter, fill=255, font=font)
            glyphs[row, column] = np.asarray(image)
    return torch.from_numpy(glyphs) / 255


def _draw_letters(glyphs: Tensor, labels: Tensor, wobble: Wobble, *, seed: int) -> Tensor:
    """Draw one letter for each label, (N, 1, 16, 16) uint8."""
    # the stream of numpy's legacy generator is frozen, so the letters never change
    random = np.random.RandomState(seed)
    fonts = torch.from_numpy(random.randint(glyphs.shape[1], size=len(labels)))
    images = glyphs[labels, fonts][:, None]  # (N, 1, 64, 64)
    matrices = _affine_matrices(random.uniform(-1, 1, size=(len(labels), 6)), wobble)
    # sampled at twice the size, then averaged, so that thin strokes are not lost between pixels
    grid = F.affine_grid(matrices, [len(labels), 1, 2 * SIZE, 2 * SIZE], align_corners=False)
    ink = F.avg_pool2d(F.grid_sample(images, grid, align_corners=False), 2)
    noise = torch.from_numpy(random.normal(size=ink.shape)).float()
    return ((ink + wobble.noise * noise).clamp(0, 1) * 255).round().to(torch.uint8)


def _affine_matrices(stray: np.ndarray, wobble: Wobble) -> Tensor:
    """Affine maps (N, 2, 3) from the image to the glyph, for strays (N, 6) in -1..1."""
    angle = np.deg2rad(wobble.turn) * stray[:, 0]
    across, down = (1 + wobble.scale * stray[:, i] for i in (1, 2))
    lean = wobble.shear * stray[:, 3]
    cos, sin = np.cos(angle), np.sin(angle)
    rows = [
        [cos / across, (sin + lean * cos) / across, wobble.shift * stray[:, 4]],
        [-sin / down, (cos - lean * sin) / down, wobble.shift * stray[:, 5]],
    ]
    return torch.from_numpy(np.array(rows)).permute(2, 0, 1).float()
