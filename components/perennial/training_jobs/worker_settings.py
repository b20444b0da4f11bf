"""Worker settings: environment variables of every rank."""

# Keeps glibc from returning every large tensor to the system and faulting it in again: 5 to 16 %
# of a step on a CPU.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


def worker_settings(threads: int) -> dict[str, str]:
    """Return the variables.

    Args:
        threads: Threads of each process.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # A shared rendezvous store gives a restarted rank the addresses of dead ones.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Without a workspace of fixed size, the order of cuBLAS's sums changes.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **MALLOC,
    }
