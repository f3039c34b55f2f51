"""The producer id of an idempotent producer: any broker gives one, once for all partitions."""

import asyncio

from scriba.client.cluster import Cluster
from scriba.peers.errors import ClientError, raise_for
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse


class ProducerIdentity:
    def __init__(self, cluster: Cluster) -> None:
        self.current: tuple[int, int] | None = None
        """Producer id and epoch."""
        self.refused: ClientError | None = None
        """Why this producer can never be idempotent here."""
        self._cluster = cluster
        self._asking = asyncio.Lock()

    async def get(self) -> None:
        """Asks for it unless it is there; whoever needs it meanwhile waits for the same one."""
        if self.current is not None:
            return
        async with self._asking:
            if self.current is not None:
                return
            if self.refused is not None:
                raise self.refused.anew()
            try:
                self.current = await self._ask()
            except ClientError as failure:
                if not failure.retriable:
                    self.refused = failure
                raise

    async def _ask(self) -> tuple[int, int]:
        connection = await self._cluster.any_connection()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        answer = await connection.request(request, InitProducerIdResponse)
        raise_for(answer.error_code, about="a producer id")
        return answer.producer_id, answer.producer_epoch
