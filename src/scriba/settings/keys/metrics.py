"""Where a node tells what it counts, declared."""

from typing import Final

from scriba.config import ConfigError, Kind, Settings, setting
from scriba.settings.listeners import Endpoint, parse_endpoints

HTTP: Final = "HTTP"


def metrics_endpoint(text: str) -> Endpoint | None:
    """`scriba.metrics.listener` read; ConfigError for what is no HTTP address."""
    if not text:
        return None
    (endpoint,) = parse_endpoints("scriba.metrics.listener", [text], {HTTP: HTTP})
    return endpoint


def _address(text: str) -> str | None:
    try:
        metrics_endpoint(text)
    except ConfigError:
        return "must be http://host:port, or empty"
    return None


class MetricsKeys(Settings):
    scriba_metrics_listener: str = setting(
        Kind.STRING,
        default="",
        check=_address,
        doc="Address at which `GET /metrics` answers in the text format of Prometheus, "
        "`GET /events` and `GET /ready` in JSON, as `http://host:port`; empty for none.",
    )

    def check_metrics(self, insecure: bool) -> None:
        """`insecure` allows an address that other machines reach."""
        endpoint = metrics_endpoint(self.scriba_metrics_listener)
        if endpoint is not None and not endpoint.is_loopback and not insecure:
            raise ConfigError(
                "scriba.metrics.listener",
                "other machines could reach it without authentication; bind it to 127.0.0.1, or "
                "allow it with scriba.allow.insecure.bind=true",
                self.scriba_metrics_listener,
            )
