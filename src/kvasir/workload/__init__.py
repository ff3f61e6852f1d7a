"""What is asked of an engine: prompts, lengths, chats, and a driver that plays them and keeps the times."""
