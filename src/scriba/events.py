"""What a node tells its operator of: every kind of event, declared once.

An event is something that happens seldom and that an operator wants to know of. Whoever notices it
names its kind; the node logs it at the level of the kind, counts it (`scriba_events_total`), and
keeps it for the console (`broker/observe/events`). The table of docs/events.md is made from here.
"""

from __future__ import annotations

import enum
from logging import ERROR, INFO, WARNING
from typing import Final, NamedTuple

REPEATS: Final = True
"""Of a kind that may come many times a second about the same thing: it is told once a minute, with
how many there were."""


class EventKind(enum.Enum):
    """Label, level, meaning, what to do about it, and whether it repeats."""

    # ---- time ----
    CLOCK_IN_DOUBT = (
        "clock_in_doubt",
        WARNING,
        "The wall clock jumped, or is far ahead of the newest time on disk. Nothing is deleted for "
        "its age.",
        "Check the clock. If it is right: `scriba log retention resume`.",
    )
    CLOCK_TRUSTED = (
        "clock_trusted",
        WARNING,
        "The wall clock is believed again. Deletion by age goes on.",
        "Nothing.",
    )
    # ---- storage ----
    LOG_DIR_OFFLINE = (
        "log_dir_offline",
        ERROR,
        "A device failed. The log directory and all its partitions are out of use until a restart.",
        "Check the device, then restart the node.",
    )
    PARTITION_OFFLINE = (
        "partition_offline",
        ERROR,
        "A replica is out of use: its log is damaged or could not be flushed, or its directory is "
        "offline.",
        "For damage stop the node and run `scriba log repair`; for lack of room make some; for a "
        "directory check the device.",
    )
    PARTITION_STRAY = (
        "partition_stray",
        WARNING,
        "A partition on disk is not part of the cluster. Its directory was renamed, its data kept.",
        "Remove the renamed directory if nobody needs it.",
    )
    PARTITION_WAITS_FOR_ROOM = (
        "partition_waits_for_room",
        WARNING,
        "A replica cannot be opened while the device is full. It is tried again by itself.",
        "Make room on the device.",
    )
    DIR_MOVE_BEGUN = (
        "dir_move_begun",
        INFO,
        "A replica is being copied to another log directory of its broker, or goes on after a "
        "restart or a lack of room.",
        "Nothing. It is served from the old directory until the copy is complete.",
    )
    DIR_MOVE_DONE = (
        "dir_move_done",
        INFO,
        "A replica is in another log directory of its broker now.",
        "Nothing. The old files go after `file.delete.delay.ms`.",
    )
    DIR_MOVE_STALLED = (
        "dir_move_stalled",
        WARNING,
        "The copy of a replica to another log directory waits for room there, or back to where it "
        "came from until the move before is durable. Clients do not notice.",
        "Make room in the directory that is named, or ask for the one in which the replica is: "
        "that ends it.",
    )
    DIR_MOVE_ENDED = (
        "dir_move_ended",
        WARNING,
        "A move of a replica between log directories ended without effect. It is where it was.",
        "Read why. Ask again if it is still wanted.",
    )
    WRITE_REFUSED = (
        "write_refused",
        WARNING,
        "A device did not take a write, most likely for lack of room. Reads go on; the write is "
        "tried again by whoever needs it.",
        "Make room on the device.",
        REPEATS,
    )
    WRITE_WATERMARK_REACHED = (
        "write_watermark_reached",
        WARNING,
        "The volume of a log directory is nearly full. Records of clients are refused there, and "
        "its leaderships go to other brokers; reads, retention and deletion go on.",
        "Make room on the device: delete topics, or lower their retention.",
    )
    WRITE_WATERMARK_LEFT = (
        "write_watermark_left",
        INFO,
        "There is room again in a log directory that was nearly full. It takes records.",
        "Nothing.",
    )
    METADATA_RESERVE_USED = (
        "metadata_reserve_used",
        WARNING,
        "A device is full, and the metadata log is written into the room that was kept for it "
        "(`scriba.metadata.reserve.bytes`).",
        "Make room on the device: delete topics, or lower their retention.",
    )
    METADATA_RESERVE_RESTORED = (
        "metadata_reserve_restored",
        INFO,
        "There is room on a device that was full, and the metadata log has its reserve again.",
        "Nothing.",
    )
    LOG_TRUNCATED = (
        "log_truncated",
        WARNING,
        "The end of a log did not pass its check after a crash. What was not flushed was cut off.",
        "Nothing, where other replicas have the records or the producers send them again.",
    )
    CHECKPOINT_FAILED = (
        "checkpoint_failed",
        WARNING,
        "A checkpoint could not be written. The next start may have to read more.",
        "Check the device and its room.",
        REPEATS,
    )
    RETENTION_FAILED = (
        "retention_failed",
        WARNING,
        "Retention could not delete segments of a partition. It is tried again.",
        "Check the device and its room.",
        REPEATS,
    )
    SEGMENTS_DELETED = (
        "segments_deleted",
        INFO,
        "Retention deleted segments of a partition.",
        "Nothing.",
    )
    FILES_NOT_CLOSED = (
        "files_not_closed",
        WARNING,
        "There are too many open files, and an idle log could not close its own.",
        "Check the device and its room; raise the limit of open files (`ulimit -n`).",
        REPEATS,
    )
    SHUTDOWN_NOT_CLEAN = (
        "shutdown_not_clean",
        WARNING,
        "A part of a clean shutdown was not done. The next start recovers what is missing.",
        "Check the device and its room.",
    )
    SNAPSHOT_UNREADABLE = (
        "snapshot_unreadable",
        ERROR,
        "A snapshot of the metadata is damaged. An older one is used, if there is one.",
        "Check the device.",
    )
    # ---- brokers and their controller ----
    PARTITIONS_LEADERLESS = (
        "partitions_leaderless",
        ERROR,
        "Partitions have had nobody to lead them for two seconds. They cannot be written or read "
        "until one of the brokers that they wait for returns.",
        "Start those brokers. If their data is gone: `scriba cluster elect --unclean`, which may "
        "lose records.",
    )
    BALANCE_BEGUN = (
        "balance_begun",
        INFO,
        "The controller moves replicas by itself (`scriba.balance.auto`): a broker has joined, or "
        "has been gone for `scriba.balance.gone.ms`.",
        "Nothing. `scriba cluster reassign --list` shows what is under way, `--cancel` stops it.",
    )
    BALANCE_ENDED = (
        "balance_ended",
        INFO,
        "The controller has moved what it wanted to by itself, or was stopped.",
        "Nothing.",
    )
    PARTITIONS_LED = (
        "partitions_led",
        INFO,
        "Every partition has a leader again.",
        "Nothing.",
    )
    UNCLEAN_ELECTION = (
        "unclean_election",
        WARNING,
        "This broker leads partitions though it may lack acknowledged records: it was their last "
        "leader and its machine crashed, or no better replica was left and the topic or an "
        "administrator allowed it.",
        "Compare with the producers what is missing: it is what no device had at the time.",
    )
    UNCLEAN_CHOICE = (
        "unclean_choice",
        WARNING,
        "The active controller asked the live replicas of a partition that nobody could lead "
        "without a loss, and elected the one with the most. The text has who had what up to where, "
        "and from which offset on records are lost.",
        "Compare with the producers what is missing from that offset on.",
    )
    RULES_NOT_ENFORCED = (
        "rules_not_enforced",
        WARNING,
        "Another controller has written ACLs or client quotas, which this broker does not enforce. "
        "While there are ACLs it serves no client: it is fenced, and others lead its partitions.",
        "Remove them (kafka-acls --remove), or take this broker out of the cluster.",
    )
    SETTINGS_LEFT_ASIDE = (
        "settings_left_aside",
        WARNING,
        "Another controller has written run-time settings that this release does not know or does "
        "not take. They have no effect here.",
        "Delete them (kafka-configs --delete-config), or set what this release takes.",
    )
    RECORDS_UNKNOWN = (
        "records_unknown",
        WARNING,
        "The metadata log has records of a feature that this release lacks. This node goes on "
        "without them, takes no snapshots that would lose them, and does not lead the quorum.",
        "Start a release that has the feature, or turn the feature off.",
    )
    BROKER_LOST = (
        "broker_lost",
        WARNING,
        "The process of a broker is gone: its connection ended and its address refuses. The active "
        "controller fenced it, and others lead its partitions.",
        "Start the broker again, and look into its log for why it ended.",
    )
    BROKER_FENCED = (
        "broker_fenced",
        WARNING,
        "A broker was fenced: it takes no part until it is back. The active controller tells of "
        "every other, and why (silent, refused, restarted); a broker that lives tells of itself.",
        "Nothing, if it comes back by itself; else check its network and whether it is overloaded.",
    )
    BROKER_STOPPED = (
        "broker_stopped",
        INFO,
        "A broker has shut down in good order, after others took over what it led.",
        "Nothing; start it again when its work is done.",
    )
    BROKER_UNFENCED = (
        "broker_unfenced",
        INFO,
        "The active controller has let a broker in, or back in: it may lead and follow.",
        "Nothing.",
    )
    CONTROLLER_UNREACHABLE = (
        "controller_unreachable",
        WARNING,
        "The broker did not reach an active controller, or was refused. It serves on with the "
        "metadata it has, and tries again.",
        "Check that a majority of the controllers runs and can be reached from here.",
        REPEATS,
    )
    # ---- compaction ----
    # ---- the metadata quorum ----
    QUORUM_LEADER = (
        "quorum_leader",
        INFO,
        "Another controller is active, or none is.",
        "Nothing, while there is one.",
    )
    QUORUM_VOTERS = (
        "quorum_voters",
        INFO,
        "The active controller has written other voters, or other addresses of theirs, into the "
        "metadata log.",
        "Nothing, if somebody asked for it.",
    )
    QUORUM_NOT_LED = (
        "quorum_not_led",
        WARNING,
        "This controller was elected, and the cluster uses what this release lacks: a level of a "
        "feature, ACLs, client quotas, a record that it cannot apply. It left the lead to another "
        "controller.",
        "Start a release that has it, let controllers that have it vote alone, or turn it off.",
    )
    METADATA_NOT_APPLIED = (
        "metadata_not_applied",
        ERROR,
        "A committed record of the metadata log cannot be applied here: a later release wrote it, "
        "or it contradicts those before it. This node serves on with the metadata before it, "
        "learns of no later change, and does not act as the active controller.",
        "Start a release that knows the record; if there is none, read the record with "
        "kafka-dump-log, and tell whoever makes the controller that wrote it.",
    )
    QUORUM_ADDRESS = (
        "quorum_address",
        WARNING,
        "controller.quorum.voters names this controller with a port that it does not listen on for "
        "controllers.",
        "Correct the port, unless something forwards it; then name it in advertised.listeners.",
    )
    QUORUM_NOT_JOINED = (
        "quorum_not_joined",
        WARNING,
        "This controller would be a voter, and the active controller has not made it one yet. It "
        "asks again.",
        "Read the reason; a voter must reach the others, and they it.",
        REPEATS,
    )
    QUORUM_FAULT = (
        "quorum_fault",
        ERROR,
        "A controller said what cannot be true. It is not believed.",
        "Check that all controllers have their own disks and node ids, and their logs.",
        REPEATS,
    )
    QUORUM_EPOCHS_SKIPPED = (
        "quorum_epochs_skipped",
        WARNING,
        "A request had this controller skip many epochs of the quorum at once, of which there are "
        "two thousand million. No controller that runs gets that far ahead of the others.",
        "See who is at the address that it names; let only controllers reach their listeners.",
        REPEATS,
    )
    QUORUM_PEER_REFUSES = (
        "quorum_peer_refuses",
        WARNING,
        "Another controller refuses this one: it belongs to another cluster, or is another node "
        "than it was taken for.",
        "Compare the addresses of controllers in the settings with who is there.",
        REPEATS,
    )
    QUORUM_WAITS = (
        "quorum_waits",
        WARNING,
        "This node is new, and waits for other controllers to tell it its cluster, or to found "
        "one with it.",
        "Start the controllers that it names, or correct their addresses.",
        REPEATS,
    )
    SNAPSHOT_NOT_FETCHED = (
        "snapshot_not_fetched",
        WARNING,
        "A snapshot of the metadata could not be brought from the active controller. It is tried "
        "again.",
        "Look at the cause; make room on the device.",
        REPEATS,
    )
    # ---- compaction ----
    COMPACTION_DONE = (
        "compaction_done",
        INFO,
        "A log was compacted.",
        "Nothing.",
    )
    COMPACTION_STARVED = (
        "compaction_starved",
        WARNING,
        "The machine is never idle, so the cleaner got no time. It begins again with a share.",
        "Give the node more processors if requests suffer.",
    )
    COMPACTION_STALE = (
        "compaction_stale",
        INFO,
        "A log changed while it was compacted. The work was dropped; the next pass looks again.",
        "Nothing.",
    )
    COMPACTION_PUT_OFF = (
        "compaction_put_off",
        WARNING,
        "A compaction failed in a way that may pass (no room, a cleaner that was killed). It is "
        "tried again.",
        "Make room on the device; leave the cleaner process alone.",
        REPEATS,
    )
    PARTITION_UNCLEANABLE = (
        "partition_uncleanable",
        ERROR,
        "Compaction found damage in a log and leaves it alone. It is served, and grows.",
        "Stop the node and run `scriba log repair`.",
    )
    # ---- replication ----
    ISR_SHRUNK = (
        "isr_shrunk",
        WARNING,
        "A replica left the in-sync set of a partition that this broker leads, or that nobody "
        "leads since: it was silent, too slow, or its broker was fenced.",
        "See whether the broker that is named is up and reachable, and its disk fast enough.",
    )
    REPLICA_STOPPED = (
        "replica_stopped",
        INFO,
        "A replica left the in-sync set because its broker shuts down in good order.",
        "Nothing; it is in sync again once its broker is back and has caught up.",
    )
    LEADER_CUT_OFF = (
        "leader_cut_off",
        ERROR,
        "No follower reaches this broker, though all of them and the controller are alive. It "
        "hands its leaderships over.",
        "Check the network to this broker: its listener for other brokers, firewalls, routes.",
    )
    ISR_EXPANDED = (
        "isr_expanded",
        INFO,
        "A replica has caught up and is in sync again.",
        "Nothing.",
    )
    ISR_FLAPS = (
        "isr_flaps",
        WARNING,
        "Replicas leave the in-sync set of a partition and come back, again and again.",
        "Find the slow broker among those that `isr_shrunk` names; see `replica.lag.time.max.ms`.",
    )
    FETCH_FAILED = (
        "fetch_failed",
        WARNING,
        "This broker cannot fetch from a leader. It tries again until it can or another one leads.",
        "See whether that broker is up, and reachable on `inter.broker.listener.name`.",
        REPEATS,
    )
    FOLLOWER_FAILED = (
        "follower_failed",
        ERROR,
        "A replica cannot take what its leader sends, and falls behind.",
        "Read the text: for damage see `partition_offline`, for lack of room make some.",
        REPEATS,
    )
    FOLLOWER_TRUNCATED = (
        "follower_truncated",
        INFO,
        "A replica took away records that were never committed: its new leader does not have them.",
        "Nothing.",
        REPEATS,
    )
    FOLLOWER_CATCHING_UP = (
        "follower_catching_up",
        INFO,
        "A replica that is far behind is being filled; how far it has come.",
        "Nothing. It leads nothing before it has caught up.",
    )
    REPLICA_REFILLED = (
        "replica_refilled",
        WARNING,
        "A damaged replica was set aside and begins anew: its leader fills it.",
        "Check the device. Remove the files that were set aside once the replica is in sync.",
    )
    LOG_TRUNCATED_BELOW_HIGH_WATERMARK = (
        "log_truncated_below_high_watermark",
        ERROR,
        "After an unclean election a replica took away records that were committed: the new leader "
        "does not have them.",
        "Nothing brings them back. See `unclean.leader.election.enable`.",
    )
    # ---- coordinators ----
    COORDINATOR_FAILED = (
        "coordinator_failed",
        ERROR,
        "A partition of a coordinator could not append or load. It is built again from its log; "
        "those it coordinates wait.",
        "Read the text. For damage stop the node and run `scriba log repair`.",
    )
    COORDINATOR_WAITS_FOR_REPLICAS = (
        "coordinator_waits_for_replicas",
        WARNING,
        "A coordinator can store nothing while fewer replicas of its partition are in sync than "
        "`min.insync.replicas`. Those it coordinates try again, and it goes on by itself.",
        "Bring the replicas back.",
        REPEATS,
    )
    COORDINATOR_RECORD_REFUSED = (
        "coordinator_record_refused",
        WARNING,
        "The log can never take what a coordinator wanted to store. The request got an error.",
        "Raise `max.message.bytes` of the internal topic, or make the group smaller.",
        REPEATS,
    )
    INTERNAL_TOPIC_FAILED = (
        "internal_topic_failed",
        ERROR,
        "An internal topic could not be created, so there is no coordinator.",
        "Read the text: too few brokers for its replication factor, for example.",
        REPEATS,
    )
    MARKER_REFUSED = (
        "marker_refused",
        ERROR,
        "A partition refused the end marker of a transaction. Readers of committed records wait "
        "there. It is tried again unless a newer producer has ended the transaction.",
        "Bring the partition back; see `scriba txn`.",
        REPEATS,
    )
    GROUP_REBALANCE = (
        "group_rebalance",
        INFO,
        "A classic group begins or ends a rebalance, or has become empty.",
        "Nothing, unless it comes again and again.",
    )
    GROUP_MEMBER_REMOVED = (
        "group_member_removed",
        INFO,
        "A member left a group, or was removed as its session ended.",
        "Nothing, unless it comes again and again.",
    )
    GROUP_MIGRATED = (
        "group_migrated",
        INFO,
        "A group changed between the consumer protocol and the classic one.",
        "Nothing.",
    )
    SUBSCRIPTION_UNRESOLVED = (
        "subscription_unresolved",
        WARNING,
        "A regular expression matches too much since there are more topics. Its members keep those "
        "that they have.",
        "Make the expression narrower.",
        REPEATS,
    )
    OFFSETS_EXPIRED = (
        "offsets_expired",
        INFO,
        "Committed offsets of a group were deleted after `offsets.retention.minutes`.",
        "Nothing.",
    )
    TRANSACTION_TIMED_OUT = (
        "transaction_timed_out",
        WARNING,
        "A transaction was not ended in time. It was aborted, and its producer fenced.",
        "See to the producer; `transaction.timeout.ms` is its own setting.",
    )
    PRODUCER_FENCED = (
        "producer_fenced",
        INFO,
        "Another producer began with the same transactional id. The older one may not write.",
        "Nothing, unless two producers share an id by mistake.",
    )
    TRANSACTIONAL_ID_EXPIRED = (
        "transactional_id_expired",
        INFO,
        "A transactional id was not used for `transactional.id.expiration.ms` and was forgotten.",
        "Nothing.",
    )
    # ---- network and requests ----
    CONNECTION_REFUSED = (
        "connection_refused",
        WARNING,
        "A connection was refused, as a limit of connections is reached.",
        "Raise `max.connections` or `max.connections.per.ip`, or find who opens so many.",
        REPEATS,
    )
    OPEN_FILES_REACHED = (
        "open_files_reached",
        WARNING,
        "There are as many connections as the limit of open files has room for. For each new one "
        "the one that is idle longest is closed, and where none is idle it is refused.",
        "Raise the limit of open files (`ulimit -n`), or find who opens so many connections.",
        REPEATS,
    )
    CONNECTION_CLOSED = (
        "connection_closed",
        INFO,
        "The node closed a connection whose peer sent what cannot be read or is not served.",
        "See who it is: an old client, or none of Kafka's.",
        REPEATS,
    )
    SLOW_PEER_SHED = (
        "slow_peer_shed",
        WARNING,
        "A peer did not take its answers, or sent a request too slowly, while others waited for "
        "the memory. It was disconnected.",
        "See to the client, or to the network between.",
        REPEATS,
    )
    VIEW_OUTLIVED_REQUEST = (
        "view_outlived_request",
        ERROR,
        "A receive buffer cannot be used again, since somebody still has a view of it: a defect of "
        "the broker. No request sees the bytes of another.",
        "Report it.",
        REPEATS,
    )
    REQUEST_FAILED = (
        "request_failed",
        ERROR,
        "A handler failed in a way that nobody expected: a defect of the broker. The client got an "
        "error.",
        "Report it with the trace in the log.",
        REPEATS,
    )

    label: str
    level: int
    meaning: str
    remedy: str
    repeats: bool

    def __new__(
        cls, label: str, level: int, meaning: str, remedy: str, repeats: bool = False
    ) -> EventKind:
        kind = object.__new__(cls)
        kind._value_ = label
        kind.label = label
        kind.level = level
        kind.meaning = meaning
        kind.remedy = remedy
        kind.repeats = repeats
        return kind


class Event(NamedTuple):
    """What a machine noticed; the node says it to somebody."""

    kind: EventKind
    about: str
    text: str
