"""The EXIF orientation: cameras store photographs as the sensor lay, and a tag that turns them."""

from PIL import ExifTags, Image
from PIL.Image import Transpose

UPRIGHT = 1
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""What brings the stored pixels of each orientation upright."""


def read_orientation(image: Image.Image) -> int:
    """Read the orientation of an opened image, 1 to 8; a damaged tag counts as 1, upright."""
    if image.format == "TIFF":  # Pillow turns these itself
        return UPRIGHT
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
        return orientation if orientation in TURNS else UPRIGHT
    except Exception:  # the parser raises anything at all on broken bytes
        return UPRIGHT


def turn(image: Image.Image, orientation: int) -> Image.Image:
    """Turn stored pixels of this orientation upright."""
    return image if orientation == UPRIGHT else image.transpose(TURNS[orientation])


def is_sideways(orientation: int) -> bool:
    """Whether width and height change places when the image is turned upright."""
    return orientation > 4


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return (width, height) of an opened image once it is turned upright."""
    across, down = image.size
    # a PNG may have its tag behind the pixels, so a square spares decoding them
    sideways = across != down and is_sideways(read_orientation(image))
    return (down, across) if sideways else (across, down)
