"""Devices that settle on one job in compiled code: `vennue.policies.partition`.

`StaticPartition` compares XXH64 hashes of a job's id and a device's name. Both together are shorter than the 32 bytes
from which on that hash takes another way. Source: Y. Collet, "XXH64 digest", xxHash specification 0.1.1.
"""

from typing import Any

import numpy as np

from vennue.simulation.kernel.state import OWNER, Array, Plans, State, compiled

MAX_TEXT_BYTES = 31

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)


@compiled
def settle(s: State, p: Plans, v: Any, draw: float) -> int:
    """The job that a device settles on among those with an offer to its kind, or −1 where there is none."""
    by_hash = s.clock[0].choice == OWNER
    offers = p.offers[v.kind]
    length = s.kinds[v.kind].length
    size = _write_device(p, v.device) if by_hash else 0
    choices = 0
    owner = -1
    largest = np.uint64(0)
    for index in range(length):
        job = offers[index]
        if s.jobs[job].open == 0 or s.jobs[job].serial != s.jobs[job].planned:
            continue
        choices += 1
        if by_hash:
            for place in range(p.names.shape[1]):
                p.text[place] = p.names[job, place]
            hashed = xxh64(p.text, size)
            if owner < 0 or hashed > largest:
                owner = job
                largest = hashed
    if by_hash or choices == 0:
        return owner
    left = int(draw * choices)
    for index in range(length):
        job = offers[index]
        if s.jobs[job].open != 0 and s.jobs[job].serial == s.jobs[job].planned:
            if left == 0:
                return job
            left -= 1
    return -1


@compiled
def _write_device(p: Plans, device: int) -> int:
    """Write a device's name, its number in decimal, behind where jobs' ids go; returns the length of both."""
    end = p.names.shape[1] + 1
    rest = device // 10
    while rest > 0:
        end += 1
        rest //= 10
    rest = device
    for place in range(end - 1, p.names.shape[1] - 1, -1):
        p.text[place] = 48 + rest % 10
        rest //= 10
    return end


@compiled
def xxh64(text: Array, size: int) -> Any:
    """The XXH64 hash, with seed 0, of the first ``size`` bytes, at most `MAX_TEXT_BYTES`; a ``uint64``."""
    hashed = _PRIME_5 + np.uint64(size)
    at = 0
    while at < size:
        count = 8 if size - at >= 8 else 4 if size - at >= 4 else 1
        lane = np.uint64(0)
        for place in range(count):
            lane |= np.uint64(text[at + place]) << np.uint64(8 * place)
        at += count
        if count == 8:
            lane *= _PRIME_2
            hashed ^= ((lane << np.uint64(31)) | (lane >> np.uint64(33))) * _PRIME_1
            hashed = ((hashed << np.uint64(27)) | (hashed >> np.uint64(37))) * _PRIME_1 + _PRIME_4
        elif count == 4:
            hashed ^= lane * _PRIME_1
            hashed = ((hashed << np.uint64(23)) | (hashed >> np.uint64(41))) * _PRIME_2 + _PRIME_3
        else:
            hashed ^= lane * _PRIME_5
            hashed = ((hashed << np.uint64(11)) | (hashed >> np.uint64(53))) * _PRIME_1
    hashed ^= hashed >> np.uint64(33)
    hashed *= _PRIME_2
    hashed ^= hashed >> np.uint64(29)
    hashed *= _PRIME_3
    return hashed ^ (hashed >> np.uint64(32))
