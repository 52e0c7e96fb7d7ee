"""Protocol Buffers' wire format, as far as Chakra's messages need it.

Source: Protocol Buffers, "Encoding". A field is a key (number << 3 | wire type) and a value; wire type 0 is a varint, 1
and 5 are 8 and 4 bytes, 2 is a length and that many bytes. The messages of a file follow each other, each preceded by
its length as a varint.
"""

from __future__ import annotations

from collections.abc import Iterator

from topologies.errors import InputError

_MOST_BITS = 64
_FIXED = {1: 8, 5: 4}  # bytes, by wire type


def varint(value: int) -> bytes:
    """Return a number of 0 or more as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that is a number of 0 or more, as a varint; `field` is the field's number."""
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes) -> bytes:
    """Return a field that is a text, a message or packed numbers, as bytes with their length; `field` is its number."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the varint at offset `at`, and return it, cut to 64 bits, with the offset of what follows.

    Raises:
        InputError: If it does not end, or has more than 10 bytes.
    """
    value = shift = 0
    while at < len(data) and shift < _MOST_BITS:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & ((1 << _MOST_BITS) - 1), at
        shift += 7
    raise InputError("a number does not end; it must be a varint of at most 10 bytes")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a protobuf message, in order, repeated ones included.

    A varint is an int; values of 4 and 8 bytes, and those with a length, stay bytes.

    Raises:
        InputError: If the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = read_varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise InputError(f"wire type {kind}; it must be 0, 1, 2 or 5")
        if length > len(data) - at:
            raise InputError(f"a field of {length} bytes, and {len(data) - at} follow; it must be whole")
        yield key >> 3, data[at : at + length]
        at += length


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, without the length before each; raise InputError if one is cut short."""
    at = 0
    while at < len(data):
        length, at = read_varint(data, at)
        if length > len(data) - at:
            raise InputError(f"a message of {length} bytes, and {len(data) - at} follow; it must be whole")
        yield data[at : at + length]
        at += length
