/* Log what a program writes below a folder and when it syncs, for power_cut.py. Loaded with LD_PRELOAD.
 *
 * A record is a line "KIND OFFSET LENGTH PATH\n" and LENGTH bytes. Kinds: W written, T truncated to OFFSET, S synced,
 * C created, R renamed to the path in the data, U unlinked, D folder made. One lock covers an operation and its record,
 * so the log has the order of the operations. A sync is only recorded: what it means is for the log's reader. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static size_t folder_length;
static int log_file = -1;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("POWER_CUT_FOLDER");
    const char *log = getenv("POWER_CUT_LOG");
    if (folder && log) {
        folder_length = strlen(folder);
        log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_ours(const char *path) { return log_file >= 0 && path && !strncmp(path, folder, folder_length); }

/* Return the path of an open file below the folder, else NULL; deleted files have none. */
static const char *path_of(int file, char *path) {
    char link[64];
    if (log_file < 0) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0) return NULL;
    path[length] = 0;
    return is_ours(path) && !strstr(path, " (deleted)") ? path : NULL;
}

static void put(const void *data, size_t length) {
    while (length) {
        ssize_t done = syscall(SYS_write, log_file, data, length);
        if (done < 0) abort();
        data = (const char *)data + done;
        length -= (size_t)done;
    }
}

static void record(char kind, long long offset, const void *data, size_t length, const char *path) {
    char line[PATH_MAX + 64];
    put(line, (size_t)snprintf(line, sizeof line, "%c %lld %zu %s\n", kind, offset, length, path));
    put(data, length);
}

static ssize_t write_at(int file, const void *data, size_t length, long long offset, int here) {
    char path[PATH_MAX + 1];
    const char *name = path_of(file, path);
    pthread_mutex_lock(&lock);
    if (here) {
        struct stat status;
        int flags = (int)syscall(SYS_fcntl, file, F_GETFL);
        offset = flags & O_APPEND && !fstat(file, &status) ? status.st_size : lseek(file, 0, SEEK_CUR);
    }
    ssize_t done = here ? syscall(SYS_write, file, data, length) : syscall(SYS_pwrite64, file, data, length, offset);
    if (done > 0 && name) record('W', offset, data, (size_t)done, name);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int file, const void *data, size_t length) { return write_at(file, data, length, 0, 1); }
ssize_t pwrite(int file, const void *data, size_t length, off_t at) { return write_at(file, data, length, at, 0); }
ssize_t pwrite64(int file, const void *data, size_t length, off64_t at) { return write_at(file, data, length, at, 0); }

/* Kinds of writing that the log does not know must not happen unseen. */
#define REFUSED(call) { char path[PATH_MAX + 1]; if (path_of(file, path)) abort(); return call; }
ssize_t writev(int file, const struct iovec *parts, int count) REFUSED(REAL(writev)(file, parts, count))
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) REFUSED(REAL(pwritev)(file, parts, count, at))
int posix_fallocate(int file, off_t at, off_t length) REFUSED(REAL(posix_fallocate)(file, at, length))
int fallocate(int file, int mode, off_t at, off_t length) REFUSED(REAL(fallocate)(file, mode, at, length))

static int truncate_to(int file, long long size) {
    char path[PATH_MAX + 1];
    const char *name = path_of(file, path);
    pthread_mutex_lock(&lock);
    int failed = (int)syscall(SYS_ftruncate, file, size);
    if (!failed && name) record('T', size, "", 0, name);
    pthread_mutex_unlock(&lock);
    return failed;
}

int ftruncate(int file, off_t size) { return truncate_to(file, size); }
int ftruncate64(int file, off64_t size) { return truncate_to(file, size); }

static int sync_file(int file, long call) {
    char path[PATH_MAX + 1];
    const char *name = path_of(file, path);
    if (!name) return (int)syscall(call, file);
    pthread_mutex_lock(&lock);
    record('S', 0, "", 0, name);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int file) { return sync_file(file, SYS_fsync); }
int fdatasync(int file) { return sync_file(file, SYS_fdatasync); }

static int open_at(const char *path, int flags, mode_t mode) {
    int writes = is_ours(path) && flags & (O_CREAT | O_TRUNC);
    if (!writes) return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    pthread_mutex_lock(&lock);
    int existed = !faccessat(AT_FDCWD, path, F_OK, 0);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (file >= 0 && !existed) record('C', 0, "", 0, path);
    else if (file >= 0 && flags & O_TRUNC) record('T', 0, "", 0, path);
    pthread_mutex_unlock(&lock);
    return file;
}

#define MODE mode_t mode = 0; if (flags & O_CREAT) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE return open_at(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_at(path, flags, mode); }

/* Do what changes a name and record it: two paths for a rename. */
#define NAMED(kind, path, data, call) { \
    pthread_mutex_lock(&lock); \
    int failed = (int)(call); \
    if (!failed && is_ours(path)) record(kind, 0, data, strlen(data), path); \
    pthread_mutex_unlock(&lock); \
    return failed; }
int rename(const char *from, const char *to) NAMED('R', from, to, syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to))
int unlink(const char *path) NAMED('U', path, "", syscall(SYS_unlinkat, AT_FDCWD, path, 0))
int mkdir(const char *path, mode_t mode) NAMED('D', path, "", syscall(SYS_mkdirat, AT_FDCWD, path, mode))
