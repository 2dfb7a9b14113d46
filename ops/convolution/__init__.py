"""Window operators on images: convolution, pooling and resizing."""
