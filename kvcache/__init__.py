"""Where KV lives: accounting of blocks (pure Python) and, in `kvcache.storage` alone, the tensors."""
