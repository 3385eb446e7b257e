"""What else the gateway keeps for a tenant, by id: stored responses, and what is known of a conversation.

A document belongs to one tenant; another tenant's id is answered exactly like an unknown one. What is in it is the
gateway's affair.
"""

from typing import Protocol


class DocumentStore(Protocol):
    """Every method raises SessionStoreUnavailable where the store does not answer."""

    async def put(self, tenant: str, document_id: str, data: bytes) -> None:
        """Store it, or replace it; its time begins anew."""
        ...

    async def touch(self, tenant: str, document_id: str) -> None:
        """Its time begins anew, where there is one; what is in it stays whoever else is writing."""
        ...

    async def get(self, tenant: str, document_id: str) -> bytes | None:
        """None for an unknown or a foreign id, and for one whose time is over."""
        ...

    async def delete(self, tenant: str, document_id: str) -> bool:
        """Whether there was one."""
        ...

    async def close(self) -> None: ...
