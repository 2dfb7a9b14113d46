"""What schedules ask of the numbers that they are made for, and the stages that their chunks are on."""

from __future__ import annotations

from mspc.ir.diagnostics import MspcError


def check_counts(
    name: str, stages: int, micro_batches: int, chunks: int, known: int | None = None, of: str = ""
) -> None:
    """Raises MspcError where a number is none, or where the schedule has another number of chunks a stage.

    known: the one number of chunks that it has, None where it has any. of: what would be right otherwise.
    """
    for what, number in (("stages", stages), ("micro-batches", micro_batches), ("chunks a stage", chunks)):
        if number < 1:
            raise MspcError(f"a schedule is for at least one of {what}, not for {number}", kind=ValueError)
    if known is not None and chunks != known:
        has = f"{known} chunk{'s' if known > 1 else ''} a stage"
        raise MspcError(f"the schedule {name!r} has {has}, not {chunks}", notes=[of] if of else [], kind=ValueError)


def in_rounds(stages: int, chunks: int) -> tuple[int, ...]:
    """Chunk k is on stage k modulo the number of stages. chunks: a stage's."""
    return tuple(range(stages)) * chunks


def there_and_back(stages: int) -> tuple[int, ...]:
    """Stage i has chunks i and 2 p - 1 - i: values go there and come back, as the letter V does."""
    return (*range(stages), *reversed(range(stages)))
