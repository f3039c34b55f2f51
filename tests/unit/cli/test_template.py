import pytest

from scriba.cli.records.template import compile_template
from scriba.client import ConsumerRecord, TimestampType

FULL = ConsumerRecord(
    "orders", 3, 42, 1_767_225_600_000, TimestampType.CREATE_TIME, b"k\xff", "ä".encode(),
    [("a", b"1"), ("b", None), ("a", b"")], 0,
)  # fmt: skip
NULLS: ConsumerRecord[None, None] = ConsumerRecord(
    "t", 0, 0, -1, TimestampType.CREATE_TIME, None, None, (), 0
)


def test_every_token() -> None:
    render = compile_template("%t %p %o %T %h %k %K %s %S %R %%")
    assert render(FULL) == (
        b"orders 3 42 1767225600000 a=1,b=NULL,a= k\xff 2 \xc3\xa4 2 \0\0\0\x02 %"
    )


def test_what_is_null_is_nothing_with_length_minus_one() -> None:
    assert compile_template("[%k|%K|%s|%S|%R|%h]")(NULLS) == b"[|-1||-1|\xff\xff\xff\xff|]"


def test_escapes() -> None:
    assert compile_template(r"\n\r\t\\\x41\x0a\q%%n")(NULLS) == b"\n\r\t\\A\nq%n"


def test_text_around_tokens_is_kept_as_it_is() -> None:
    assert compile_template("ü{%o}")(FULL) == "ü{42}".encode()
    assert compile_template("")(FULL) == b""


@pytest.mark.parametrize("text", ["%z", "50%", "% s"])
def test_an_unknown_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no token; there are %t"):
        compile_template(text)
