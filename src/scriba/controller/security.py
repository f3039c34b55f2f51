"""Who may do what, and how much: records that another controller may have written.

A cluster may have controllers that serve ACLs, quotas, SCRAM credentials and delegation tokens,
which this release does not. It keeps their records, so that an image made here and a snapshot
written here lose none of them, and tells which of them it does not enforce.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from scriba.wire.messages.stored import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from scriba.wire.schema import Message

Key = tuple[str, object]
"""What kind of thing it is, and which."""

ACL: Final = "ACL"
QUOTA: Final = "client quota"
SCRAM: Final = "SCRAM credential"
TOKEN: Final = "delegation token"

_ENFORCED_BY_BROKERS: Final = (ACL, QUOTA)
"""The others only matter to listeners with authentication, of which there are none."""


class SecurityImage:
    """Every such record by its key, in the order in which they came."""

    __slots__ = ("records",)

    def __init__(self, records: dict[Key, Message] | None = None) -> None:
        self.records: dict[Key, Message] = records or {}

    def copy(self) -> "SecurityImage":
        return SecurityImage(self.records.copy())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecurityImage) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.records.values())

    def fold(self, record: Message) -> None:
        """Removing what is not there is no error: Kafka's own images do not mind either."""
        key, stays = KEYS[type(record)](record)
        if stays:
            self.records[key] = record
        else:
            self.records.pop(key, None)

    def count(self, kind: str) -> int:
        return sum(1 for each, _ in self.records if each == kind)

    @property
    def forbids(self) -> str:
        """The ACLs there are, in words: a broker that cannot keep them must not serve anybody."""
        count = self.count(ACL)
        return f"{count} ACL{'s' * (count > 1)}" if count else ""

    def unenforced(self) -> str:
        """What there is that brokers would have to enforce, in words; empty when nothing."""
        counts = [(self.count(kind), kind) for kind in _ENFORCED_BY_BROKERS]
        return " and ".join(f"{n} {kind}{'s' * (n > 1)}" for n, kind in counts if n)


def _quota(record: ClientQuotaRecord) -> tuple[Key, bool]:
    entity = tuple(sorted((each.entity_type, each.entity_name or "") for each in record.entity))
    defaults = tuple(sorted(e.entity_type for e in record.entity if e.entity_name is None))
    return (QUOTA, (entity, defaults, record.key)), not record.remove


KEYS: Final[dict[type[Message], Callable[[Any], tuple[Key, bool]]]] = {
    AccessControlEntryRecord: lambda r: ((ACL, r.id), True),
    RemoveAccessControlEntryRecord: lambda r: ((ACL, r.id), False),
    ClientQuotaRecord: _quota,
    UserScramCredentialRecord: lambda r: ((SCRAM, (r.name, r.mechanism)), True),
    RemoveUserScramCredentialRecord: lambda r: ((SCRAM, (r.name, r.mechanism)), False),
    DelegationTokenRecord: lambda r: ((TOKEN, r.token_id), True),
    RemoveDelegationTokenRecord: lambda r: ((TOKEN, r.token_id), False),
}
"""What each record is about, and whether that exists after it."""
