# SPDX-License-Identifier: LGPL-2.1-or-later
"""What each system call can fail with, by the manual pages of section 2 (man-pages 6) and, where they say less, what facts of
newer kernels add: mremap EPERM (sealed, Linux 6.10), madvise EBUSY (MADV_COLLAPSE) and EHWPOISON.

A call that the core makes and that has no line here fails the test.
"""

FILES = ("EACCES EAGAIN EBADF EBUSY EDQUOT EEXIST EFAULT EFBIG EINTR EINVAL EISDIR ELOOP EMFILE ENAMETOOLONG ENFILE ENODEV "
         "ENOENT ENOMEM ENOSPC ENOTDIR ENXIO EOPNOTSUPP EOVERFLOW EPERM EROFS ETXTBSY")
STATUS = "EACCES EBADF EFAULT EINVAL ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR EOVERFLOW"
READ = "EAGAIN EBADF EFAULT EINTR EINVAL EIO EISDIR"
WRITE = "EAGAIN EBADF EDESTADDRREQ EDQUOT EFAULT EFBIG EINTR EINVAL EIO ENOSPC EPERM EPIPE"
AT = " ENXIO EOVERFLOW ESPIPE"

ERRNOS = {
    "brk": "ENOMEM",  # the kernel's own call has no errors: it returns the break that there was
    "close": "EBADF EDQUOT EINTR EIO ENOSPC",
    "fstat": STATUS,
    "fstatfs": "EBADF EFAULT EINTR EIO ENOMEM EOVERFLOW",
    "ftruncate": "EACCES EBADF EFBIG EINTR EINVAL EIO EISDIR EPERM EROFS ETXTBSY",
    "get_mempolicy": "EFAULT EINVAL",
    "getcpu": "EFAULT",
    "geteuid": "",
    "getpid": "",
    "getrandom": "EAGAIN EFAULT EINTR EINVAL",
    "ioctl": "EAGAIN EBADF EBUSY EEXIST EFAULT EINVAL ENOENT ENOMEM ENOSPC ENOTTY EPERM ESRCH",
    "madvise": "EACCES EAGAIN EBADF EBUSY EFAULT EHWPOISON EINVAL EIO ENOMEM EPERM",
    "mbind": "EFAULT EINVAL EIO ENOMEM EPERM",
    "memfd_create": "EFAULT EINVAL EMFILE ENFILE ENOMEM EPERM",
    "mmap": "EACCES EAGAIN EBADF EEXIST EINVAL ENFILE ENODEV ENOMEM EOVERFLOW EPERM ETXTBSY",
    "mprotect": "EACCES EINVAL ENOMEM",
    "mremap": "EAGAIN EFAULT EINVAL ENOMEM EPERM",
    "munmap": "EINVAL ENOMEM",
    "newfstatat": STATUS,
    "openat": FILES,
    "prctl": "EACCES EBADF EBUSY EFAULT EINVAL ENODEV ENXIO EOPNOTSUPP EPERM",
    "prlimit64": "EFAULT EINVAL EPERM ESRCH",
    "pread64": READ + AT,
    "preadv2": READ + AT + " EOPNOTSUPP",
    "process_vm_readv": "EFAULT EINVAL ENOMEM EPERM ESRCH",
    "pwrite64": WRITE + AT,
    "read": READ,
    "readlinkat": "EACCES EBADF EFAULT EINVAL EIO ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR",
    "renameat2": "EACCES EBADF EBUSY EDQUOT EEXIST EFAULT EINVAL EISDIR ELOOP EMLINK ENAMETOOLONG ENOENT ENOMEM ENOSPC "
                 "ENOTDIR ENOTEMPTY EPERM EROFS EXDEV",
    "rt_sigprocmask": "EFAULT EINVAL",
    "statx": STATUS,
    "unlinkat": "EACCES EBADF EBUSY EFAULT EINVAL EIO EISDIR ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR ENOTEMPTY EPERM EROFS",
    "userfaultfd": "EINVAL EMFILE ENFILE ENOMEM EPERM",
    "write": WRITE,
}

# A filter of system calls (seccomp) makes any of them fail like this.
FILTERED = "EPERM ENOSYS"

# What the kernel does although it says that it failed.
DONE_ALL_THE_SAME = {"close"}
