"""The hooks in a user's process. They observe calls of PyTorch and change none of its results."""
