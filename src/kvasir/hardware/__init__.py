"""What machines can do: device cards (memory, bandwidth, FLOPs) and the roofline over them."""
