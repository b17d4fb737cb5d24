"""Question files as tables: JSONL, JSON, Parquet and CSV to rows with the place they stand, and back.

What the fields mean is no matter here; see ``questions.py``.
"""

from __future__ import annotations

import csv
import io
import json
import math
import numbers
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UserError

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
FIELDS = ("id", "question", "answer", "rephrasings", "source")
TEXT_FIELDS = ("id", "question", "answer", "source")


class Row(NamedTuple):
    """``where`` it stands ("line 3", "row 3"), its values by column, or the problem why there are none."""

    where: str
    values: dict[str, Any]
    problem: str = ""


class Table(NamedTuple):
    """Rows, and the columns that exist, including those that are empty in every row."""

    columns: list[str]
    rows: list[Row]


def read_file(path: Path) -> Table:
    """The rows of a file, in the format of its suffix; cells that are empty (CSV) or null (Parquet) are left out.

    Raises:
        UserError: the file as a whole cannot be read. Rows that cannot be read carry a ``problem`` instead.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path)
    readers: dict[str, Callable[[str, Path], Table]] = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv}
    if suffix not in readers:
        raise UserError(suffix_problem(path))
    return readers[suffix](_read_text(path), path)


def suffix_problem(path: Path) -> str:
    """What to say about a file of another kind."""
    return f"{path}: the suffix says the format and must be one of {', '.join(SUFFIXES)}; got {path.suffix or 'none'}"


def _table(rows: list[Row]) -> Table:
    return Table(list(dict.fromkeys(column for row in rows for column in row.values)), rows)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: byte {error.start} (line {line}) is not UTF-8 text; save the file as UTF-8 and try again"
        ) from None


def _read_jsonl(text: str, path: Path) -> Table:
    # Only "\n" ends a line: JSON strings may hold U+2028 and the like, at which splitlines() would cut.
    lines = enumerate(text.split("\n"), 1)
    return _table([_json_row(line, f"line {number}") for number, line in lines if line.strip()])


def iter_jsonl_rows(path: Path) -> Iterator[Row]:
    """The rows of a .jsonl file one by one, as ``read_file`` gives them; a line that is not UTF-8 is a bad row.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"line {number}"
                try:
                    text = line.decode("utf-8").removeprefix("\ufeff" if number == 1 else "")
                except UnicodeDecodeError as error:
                    yield Row(where, {}, f"byte {error.start} is not UTF-8 text; save the file as UTF-8")
                    continue
                if text.strip():
                    yield _json_row(text, where)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _json_row(line: str, where: str) -> Row:
    try:
        return _object_row(json.loads(line, object_pairs_hook=_unique_keys), where)
    except (ValueError, RecursionError) as error:
        return Row(where, {}, _json_problem(error))


def _object_row(value: Any, where: str) -> Row:
    if not isinstance(value, Mapping):
        return Row(where, {}, f"{kind_of(value)}, not an object with named fields")
    return Row(where, dict(value))


def _read_json(text: str, path: Path) -> Table:
    if not text.strip():
        return _table([])
    try:
        values = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}{line}: {_json_problem(error)}") from None
    if not isinstance(values, list):
        raise UserError(f"{path}: holds {kind_of(values)}; a .json file of questions holds a list of objects")
    return _table([_object_row(value, f"row {number}") for number, value in enumerate(values, 1)])


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the field {key!r} occurs twice")
    return values


def _json_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "broken JSON: nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        return f"broken JSON: {error}"
    hint = r" (a backslash is written twice: \\frac)" if "escape" in error.msg else ""
    return f"broken JSON: {error.msg} at column {error.colno}{hint}"


def _read_csv(text: str, path: Path) -> Table:
    rows: list[Row] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if twice := [name for name, count in Counter(header).items() if count > 1]:
            raise UserError(f"{path}, line 1: the column {twice[0]!r} occurs twice")
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                rows.append(_csv_row(header, cells, f"line {line}"))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: broken CSV: {error}") from None
    return Table(header, rows)


def _csv_row(header: list[str], cells: list[str], where: str) -> Row:
    if len(cells) != len(header):
        return Row(where, {}, f"{len(cells)} cells, but the header has {len(header)}")
    # Our own text columns stay text; for the others, JSON is the only way to hold a number or a list.
    values = {
        column: cell if column in TEXT_FIELDS else _json_or_text(cell)
        for column, cell in zip(header, cells, strict=True)
        if cell
    }
    return Row(where, values)


def _json_or_text(cell: str) -> Any:
    try:
        value = json.loads(cell, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return cell
    return cell if isinstance(value, float) and math.isinf(value) else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read_parquet(path: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).read()
        values_of_rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {error}") from None
    as_json = {entry.name for entry in table.schema if (entry.metadata or {}).get(b"ta_grpo") == b"json"}
    rows = []
    for number, values in enumerate(values_of_rows, 1):
        cells = {name: value for name, value in values.items() if value is not None}
        try:
            cells |= {name: json.loads(cells[name]) for name in as_json & cells.keys()}
            rows.append(Row(f"row {number}", cells))
        except (ValueError, RecursionError, TypeError) as error:
            rows.append(Row(f"row {number}", {}, _json_problem(error)))
    return Table(table.column_names, rows)


def read_rows(source: Any) -> Table:
    """The rows of a ``datasets.Dataset``, whose nulls are left out, or of an iterable of dicts.

    Raises:
        UserError: the source is neither.
    """
    if isinstance(source, Mapping):
        raise UserError(f"questions: got a mapping with the keys {', '.join(map(str, source))}; choose one split of it")
    if not isinstance(source, Iterable):
        raise UserError(f"questions: cannot be read from {type(source).__name__}; pass a path, a Dataset or dicts")
    columns = getattr(source, "column_names", None)
    rows = [_object_row(value, f"row {number}") for number, value in enumerate(source, 1)]
    if columns is None:
        return _table(rows)
    # Arrow has no absent cells, only null ones.
    present = [row._replace(values={k: v for k, v in row.values.items() if v is not None}) for row in rows]
    return Table(list(columns), present)


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "text"),
    (numbers.Real, "a number"),
    ((list, tuple), "a list"),
    (Mapping, "an object"),
)


def kind_of(value: Any) -> str:
    """A value in words, for a message that says what was got instead."""
    if value is None:
        return "null"
    name = next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)
    return f"{name} ({value!r:.60})"


# Writing.


def write_file(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records, each with all of ``FIELDS``, in the format of the suffix; the file is replaced in one step.

    An extra column that Parquet would change becomes JSON text, marked so in the column's metadata.
    """
    writers = {".jsonl": _jsonl_bytes, ".json": _json_bytes, ".parquet": _parquet_bytes, ".csv": _csv_bytes}
    _replace_file(path, writers[path.suffix.lower()](records))


def _jsonl_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode("utf-8")


def _json_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    return f"[\n{lines}\n]\n".encode()


def _extra_columns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record if name not in FIELDS))


def _csv_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    header = [*FIELDS, *_extra_columns(records)]
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(header)
    for record in records:
        writer.writerow([_csv_cell(name, record[name]) if name in record else "" for name in header])
    return written.getvalue().encode("utf-8")


def _csv_cell(name: str, value: Any) -> str:
    is_plain = isinstance(value, str) and (name in TEXT_FIELDS or (value != "" and _json_or_text(value) == value))
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _parquet_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = {
        name: pyarrow.array(
            [record[name] for record in records],
            type=pyarrow.list_(pyarrow.string()) if name == "rephrasings" else pyarrow.string(),
        )
        for name in FIELDS
    }
    entries = [pyarrow.field(name, column.type) for name, column in columns.items()]
    for name in _extra_columns(records):
        values = [record.get(name) for record in records]
        column = _native_column(values) if not any(name in r and r[name] is None for r in records) else None
        entry_metadata = None
        if column is None:
            texts = [json.dumps(r[name], ensure_ascii=False) if name in r else None for r in records]
            column, entry_metadata = pyarrow.array(texts, type=pyarrow.string()), {"ta_grpo": "json"}
        columns[name] = column
        entries.append(pyarrow.field(name, column.type, metadata=entry_metadata))
    table = pyarrow.Table.from_arrays(list(columns.values()), schema=pyarrow.schema(entries))
    written = io.BytesIO()
    pyarrow.parquet.write_table(table, written, write_page_checksum=True)
    return written.getvalue()


def _native_column(values: list[Any]) -> Any:
    """The values as an Arrow array, or None if Parquet would change them (1 to 1.0, a missing key to a null one)."""
    import pyarrow
    import pyarrow.parquet

    written = io.BytesIO()
    try:
        column = pyarrow.array(values)
        pyarrow.parquet.write_table(pyarrow.table({"column": column}), written)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return None
    read = pyarrow.parquet.ParquetFile(written).read().column("column").to_pylist()
    return column if repr(read) == repr(values) else None


def _replace_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
