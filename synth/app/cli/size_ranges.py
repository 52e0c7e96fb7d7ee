"""Message sizes as a range or a list on the command line."""

from __future__ import annotations

from synth.model.sizes import parse_size
from topologies.errors import InputError
from topologies.text.fields import shown

DEFAULT_SIZES = "1K:1G:4x"
_MOST_SIZES = 1000


def parse_sweep(text: str, option: str = "--sizes", factor: int = 2) -> list[int]:
    """Return the message sizes in bytes of a range, ascending, or of a list, in its order.

    A range begins at its lower end and stops before the first size over its upper end.

    Args:
        text: `1K:1G:4x` (LOW:HIGH:FACTOR), `1K:1G`, or `4K,1M,64M`.
        option: Name of the option for error messages.
        factor: Factor of a range that states none.

    Raises:
        InputError: The text is neither, a list has more than 1000 sizes, or a range falls or has a factor below 2. The
            message begins with `option`.
    """
    low_text, *further_parts = text.split(":")
    if not further_parts:
        listed = [parse_size(part, option) for part in text.split(",")]
        if len(listed) > _MOST_SIZES:
            raise InputError(f"{option}: {len(listed)} sizes; give at most {_MOST_SIZES}")
        return listed
    if len(further_parts) > 2:
        raise InputError(f"{option}: {shown(text)} is no range of sizes; write it as in {DEFAULT_SIZES}")
    low, high = parse_size(low_text, option), parse_size(further_parts[0], option)
    if low > high:
        raise InputError(f"{option}: {shown(text)} has its larger end first; write the smaller size first")
    if len(further_parts) == 2:
        number = further_parts[1].strip().removesuffix("x")
        if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number) >= 2):
            raise InputError(
                f"{option}: {shown(further_parts[1])} is no factor; write 2x or more, as in {DEFAULT_SIZES}"
            )
        factor = int(number)
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return sizes
