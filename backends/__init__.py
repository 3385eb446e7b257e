"""What answers requests: our own engines in processes of their own, and remote servers behind the same protocol."""
