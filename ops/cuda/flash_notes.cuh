struct alignas(16) Note { float base, mean, share, unused; };  // of a query
