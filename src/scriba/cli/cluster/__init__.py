"""`scriba cluster`: brokers, the metadata quorum, leaders."""
