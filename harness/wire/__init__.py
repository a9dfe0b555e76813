"""Request encoding and event decoding per protocol; no sockets, no clocks."""
