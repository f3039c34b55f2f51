"""Named clusters: the file they are in, and which of them a command talks to."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.cli.main import main
from scriba.cli.parsing.arguments import parser
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.profiles.store import Profile, Profiles, load, read, render

VARIABLES = ("SCRIBA_PROFILE", "SCRIBA_BOOTSTRAP")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "scriba" / "profiles.toml"


def add(name: str, bootstrap: str, *more: str) -> None:
    assert main(["profile", "add", name, "-b", bootstrap, *more]) == 0


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        st.builds(
            Profile,
            st.none() | st.text(max_size=30),
            st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=30), max_size=3),
        ),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(profiles: dict[str, Profile]) -> None:
    import tomllib

    book = Profiles(profiles, next(iter(profiles), None))
    assert read(tomllib.loads(render(book)), "file") == book


def test_the_file_is_its_owners_alone(home: Path) -> None:
    add("staging", "kafka:9092", "-X", "client.id=ann")
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert load(home).profiles == {"staging": Profile("kafka:9092", {"client.id": "ann"})}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('curent = "a"', "unknown key 'curent'; did you mean current?"),
        ('[profiles.a]\nbotstrap = "x:1"', "unknown key 'botstrap'; did you mean bootstrap?"),
        ("[profiles.a]\nbootstrap = 9092", "bootstrap is no text; put it in quotes"),
        ('current = "b"', "the current profile 'b' is not there"),
        ("profiles = 3", "profiles is no table"),
        ("[profiles", "is no TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_reason(
    home: Path, text: str, complaint: str
) -> None:
    home.parent.mkdir()
    home.write_text(text)
    with pytest.raises(CommandError) as refused:
        load(home)
    assert complaint in str(refused.value)


def test_the_strongest_word_says_where_a_command_talks_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("used", "used:1", "-X", "client.id=of-used", "--use")
    add("named", "named:1", "-X", "client.id=of-named")

    def talks_to(*words: str) -> tuple[str, str | None]:
        options = parser().parse_args(["topic", "list", *words])
        return options.bootstrap, options.profile_settings.get("client.id")

    assert talks_to() == ("used:1", "of-used")
    assert talks_to("-b", "typed:1") == ("typed:1", None), "another cluster, none of its settings"
    assert talks_to("--profile", "named") == ("named:1", "of-named")
    assert talks_to("--profile", "named", "-b", "typed:1") == ("typed:1", "of-named")
    monkeypatch.setenv("SCRIBA_PROFILE", "named")
    assert talks_to() == ("named:1", "of-named")
    assert talks_to("--profile", "used") == ("used:1", "of-used")
    monkeypatch.setenv("SCRIBA_BOOTSTRAP", "variable:1")
    assert talks_to() == ("variable:1", "of-named")
    assert talks_to("--profile", "used") == ("used:1", "of-used")
    monkeypatch.delenv("SCRIBA_PROFILE")
    assert talks_to() == ("variable:1", None)
    assert main(["profile", "use", "--none"]) == 0
    monkeypatch.delenv("SCRIBA_BOOTSTRAP")
    assert talks_to() == ("127.0.0.1:9092", None)


def test_a_profile_that_is_not_there_is_told_with_those_that_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("one", "kafka:1")
    monkeypatch.setenv("SCRIBA_PROFILE", "two")
    with pytest.raises(Misuse, match=r"no profile two \(SCRIBA_PROFILE\); there are: one"):
        parser().parse_args(["topic", "list"])
    assert main(["topic", "list", "--profile", "three"]) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["a", "-b", "nowhere"], "'nowhere' is not host:port"),
        (["a", "-b", "k:1", "-X", "ack=1"], "ack: no such setting of a client; did you mean acks?"),
        (["a", "-b", "k:1", "-X", "acks=9"], "acks=9"),
        (["../a", "-b", "k:1"], "is no name for a profile"),
    ],
)
def test_what_no_client_would_take_is_not_kept(
    home: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "add", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not home.exists()


def test_the_life_of_a_profile(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add("a", "kafka:1")
    assert main(["profile", "add", "a", "-b", "kafka:2"]) == 1
    assert "--replace writes it anew" in capsys.readouterr().err
    add("a", "kafka:2", "--replace", "--use")
    capsys.readouterr()
    assert main(["profile", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed == {"name": "a", "bootstrap": "kafka:2", "settings": {}, "current": True}
    assert main(["profile", "show"]) == 0
    assert capsys.readouterr().out.startswith("a, in use\n  bootstrap: kafka:2\n")
    assert main(["profile", "remove", "a"]) == 0
    assert load(home) == Profiles({})
    assert main(["profile", "show"]) == 1
    assert main(["profile", "use", "a"]) == 2
