"""The truth server driven by the load engine, and the certificate that comes out of it."""
