/* Stands before libc's file calls of one process (LD_PRELOAD): slows flushes, and notes what a power loss would undo.
 *
 * Notes are below $ONCEGATE_FLUSHES.unflushed/, of files below $ONCEGATE_FLUSHES_ROOT and of that directory itself:
 *   <inode>    records of the writes to one file since its last flush, each {kind, offset, length, size before} and,
 *              unless kind is 'Z' (zeros) or 'G' (it only grew), the bytes that stood there; removed by its flush, and
 *              called <inode>.<pid>-<number> while the flush runs
 *   names      names made, replaced or removed, each "KIND INODE INODE2 PATH\0PATH2\0"; "S OFFSET" is a directory's
 *              flush: its names noted before OFFSET are safe
 * A file that loses its last name is kept in $ONCEGATE_FLUSHES_ROOT.unlinked/<inode> until the directory is flushed.
 * Read by gateway/check/flush_control.py. Not seen: mmap (SQLite's shared-memory index is no durable data; RocksDB
 * writes through no map here), stdio (RocksDB's LOG).
 */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct record { uint32_t kind; uint32_t zero; uint64_t offset, length, size; };
struct grave { struct grave *next; ino_t inode; off_t noted; char directory[]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const volatile uint32_t *delay_us;
static char notes[PATH_MAX - 64], root[PATH_MAX - 64], above[PATH_MAX - 64];
static size_t root_length;
static int names_fd = -1, flushes, inherited;
static struct grave *graves;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int inherit(ino_t inode, int strike);

__attribute__((constructor)) static void begin(void) {
    const char *control = getenv("ONCEGATE_FLUSHES"), *place = getenv("ONCEGATE_FLUSHES_ROOT");
    if (!control || !place || strlen(control) > PATH_MAX - 128 || strlen(place) > PATH_MAX - 128) return;
    int fd = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *delay_us, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(notes, sizeof notes, "%s.unflushed", control);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/names", notes);
    if (mapped == MAP_FAILED) return;
    delay_us = mapped;
    snprintf(root, sizeof root, "%s", place);
    snprintf(above, sizeof above, "%s", place);
    char *slash = strrchr(above, '/');
    if (slash) *slash = 0;
    root_length = strlen(root);
    names_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    inherited = inherit(0, 0);
}

/* -- which file -- */

static int tracked(const char *path) {
    return names_fd >= 0 && !strncmp(path, root, root_length) && (!path[root_length] || path[root_length] == '/');
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static int full_path(int directory, const char *path, char *full) {
    char base[PATH_MAX] = "";
    if (names_fd < 0 || !path) return 0;
    if (path[0] != '/') {
        if (directory == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(directory, base)) return 0;
    }
    size_t at = 0;
    for (const char *part = base; *part && at < PATH_MAX - 2; part++) full[at++] = *part;
    if (base[0]) full[at++] = '/';
    for (const char *part = path; *part && at < PATH_MAX - 2; part++)
        if (*part != '/' || !at || full[at - 1] != '/') full[at++] = *part;
    while (at > 1 && full[at - 1] == '/') at--;
    full[at] = 0;
    return tracked(full);
}

static ino_t inode_at(const char *path, struct stat *found) {
    return syscall(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW) ? 0 : found->st_ino;
}

/* -- notes -- */

static void note_path(char *path, ino_t inode, int number) {
    if (number) snprintf(path, PATH_MAX, "%s/%lu.%d-%d", notes, (unsigned long)inode, getpid(), number);
    else snprintf(path, PATH_MAX, "%s/%lu", notes, (unsigned long)inode);
}

static void grave_path(char *path, ino_t inode) {
    snprintf(path, PATH_MAX, "%s.unlinked/%lu", root, (unsigned long)inode);
}

static void note_name(char kind, unsigned long first, unsigned long second, const char *path, const char *other) {
    char record[2 * PATH_MAX + 64];
    int length = snprintf(record, sizeof record, "%c %lu %lu %s%c%s%c", kind, first, second, path, 0, other, 0);
    syscall(SYS_write, names_fd, record, (size_t)length);
}

static void forget_writes(ino_t inode) {
    char path[PATH_MAX];
    note_path(path, inode, 0);
    syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* Note what stands at offset, length bytes of it; call with the lock held. */
static void note_change(int fd, const struct stat *found, char kind, uint64_t offset, uint64_t length) {
    uint64_t size = found->st_size, there = offset < size ? size - offset : 0;
    if (there > length) there = length;
    struct record *record = calloc(1, sizeof *record + there);
    char path[PATH_MAX];
    if (!record) abort();
    uint8_t *old = (uint8_t *)(record + 1);
    for (uint64_t at = 0; at < there;) {
        /* A file opened for writing only is read through its name in /proc. */
        ssize_t part = syscall(SYS_pread64, fd, old + at, there - at, offset + at);
        if (part < 0 && errno == EBADF) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            int reader = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
            part = syscall(SYS_pread64, reader, old + at, there - at, offset + at);
            close(reader);
        }
        if (part <= 0) break;
        at += part;
    }
    int zero = !there || (!old[0] && !memcmp(old, old + 1, there - 1));
    *record = (struct record){zero && kind == 'W' ? 'Z' : kind, 0, offset, length, size};
    note_path(path, found->st_ino, 0);
    int out = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (kind == 'W' && !zero) record = realloc(record, sizeof *record + length);
    if (!record) abort();
    if (kind == 'W' && !zero) memset((uint8_t *)(record + 1) + there, 0, length - there);
    size_t bytes = sizeof *record + (kind == 'W' ? (zero ? 0 : length) : kind == 'T' ? there : 0);
    if (out < 0 || syscall(SYS_write, out, record, bytes) != (ssize_t)bytes) abort();
    close(out);
    free(record);
}

static int regular(int fd, struct stat *found) {
    char path[PATH_MAX];
    return names_fd >= 0 && !fstat(fd, found) && S_ISREG(found->st_mode) && path_of(fd, path) && tracked(path);
}

static size_t bytes_of(const struct iovec *buffers, int count) {
    size_t total = 0;
    for (int at = 0; at < count; at++) total += buffers[at].iov_len;
    return total;
}

/* -- writes -- */

#define WRITING(fd, offset, length, call) do { \
        struct stat found; \
        if (!regular(fd, &found)) return call; \
        pthread_mutex_lock(&lock); \
        fstat(fd, &found); \
        note_change(fd, &found, 'W', offset, length); \
        __typeof__(call) done = call; \
        pthread_mutex_unlock(&lock); \
        return done; \
    } while (0)

static off_t place(int fd, const struct stat *found) {
    return fcntl(fd, F_GETFL) & O_APPEND ? found->st_size : lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t length) {
    WRITING(fd, place(fd, &found), length, syscall(SYS_write, fd, data, length));
}
ssize_t writev(int fd, const struct iovec *buffers, int count) {
    WRITING(fd, place(fd, &found), bytes_of(buffers, count), syscall(SYS_writev, fd, buffers, count));
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    WRITING(fd, offset, length, syscall(SYS_pwrite64, fd, data, length, offset));
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }
ssize_t pwritev64v2(int fd, const struct iovec *buffers, int count, off64_t offset, int flags) {
    if (offset == -1) return writev(fd, buffers, count);
    WRITING(fd, offset, bytes_of(buffers, count), REAL(pwritev64v2)(fd, buffers, count, offset, flags));
}
ssize_t pwritev2(int fd, const struct iovec *b, int n, off_t at, int flags) { return pwritev64v2(fd, b, n, at, flags); }
ssize_t pwritev64(int fd, const struct iovec *b, int n, off64_t at) { return pwritev64v2(fd, b, n, at, 0); }
ssize_t pwritev(int fd, const struct iovec *b, int n, off_t at) { return pwritev64v2(fd, b, n, at, 0); }

/* -- sizes -- */

static int resizing(int fd, uint64_t size, int (*call)(int, off64_t, off64_t), off64_t first, off64_t second) {
    struct stat found;
    if (!regular(fd, &found)) return call(fd, first, second);
    pthread_mutex_lock(&lock);
    fstat(fd, &found);
    uint64_t before = found.st_size;
    if (size < before) note_change(fd, &found, 'T', size, before - size);
    else if (size > before) note_change(fd, &found, 'G', before, size - before);
    int done = call(fd, first, second);
    pthread_mutex_unlock(&lock);
    return done;
}
static int cut(int fd, off64_t size, off64_t unused) { (void)unused; return syscall(SYS_ftruncate, fd, size); }
static int reserve(int fd, off64_t at, off64_t size) { return REAL(posix_fallocate64)(fd, at, size); }
static int grow(int fd, off64_t at, off64_t size) { return syscall(SYS_fallocate, fd, 0, at, size); }

int ftruncate64(int fd, off64_t size) { return resizing(fd, size, cut, size, 0); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
static uint64_t larger(int fd, off64_t end) {
    struct stat found;
    return fstat(fd, &found) || found.st_size > end ? (uint64_t)found.st_size : (uint64_t)end;
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return resizing(fd, larger(fd, at + size), reserve, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
    if (mode) return syscall(SYS_fallocate, fd, mode, at, size);
    return resizing(fd, larger(fd, at + size), grow, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate64(fd, mode, at, size); }
int truncate64(const char *path, off64_t size) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    int done = ftruncate64(fd, size), reason = errno;
    close(fd);
    errno = reason;
    return done;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

/* -- names -- */

static int opened(int directory, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    struct stat found;
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !full_path(directory, path, full))
        return syscall(SYS_openat, directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    int there = inode_at(full, &found) != 0;
    if (there && flags & O_TRUNC && found.st_size && S_ISREG(found.st_mode)) {
        int fd = syscall(SYS_openat, AT_FDCWD, full, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            note_change(fd, &found, 'T', 0, found.st_size);
            close(fd);
        }
    }
    int fd = syscall(SYS_openat, directory, path, flags, mode);
    if (fd >= 0 && !there && !fstat(fd, &found)) {
        forget_writes(found.st_ino); /* of a file that had this number before */
        note_name('C', found.st_ino, 0, full, "");
    }
    int reason = errno;
    pthread_mutex_unlock(&lock);
    errno = reason;
    return fd;
}

#define OPEN(directory, path, flags) do { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags) & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return opened(directory, path, (flags), mode); \
    } while (0)
int open(const char *path, int flags, ...) { OPEN(AT_FDCWD, path, flags); }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD, path, flags); }
int openat(int directory, const char *path, int flags, ...) { OPEN(directory, path, flags); }
int openat64(int directory, const char *path, int flags, ...) { OPEN(directory, path, flags); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

static void bury(const char *path, ino_t inode) {
    char grave[PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct grave *one = malloc(sizeof *one + (slash - path) + 1);
    if (!one) abort();
    grave_path(grave, inode);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, grave, 0);
    *one = (struct grave){graves, inode, lseek(names_fd, 0, SEEK_END)};
    memcpy(one->directory, path, slash - path);
    one->directory[slash - path] = 0;
    graves = one;
}

int unlinkat(int directory, const char *path, int flags) {
    char full[PATH_MAX];
    struct stat found;
    if (!full_path(directory, path, full)) return syscall(SYS_unlinkat, directory, path, flags);
    pthread_mutex_lock(&lock);
    ino_t inode = inode_at(full, &found);
    if (inode && !(flags & AT_REMOVEDIR) && S_ISREG(found.st_mode)) bury(full, inode);
    int done = syscall(SYS_unlinkat, directory, path, flags), reason = errno;
    if (!done) note_name(flags & AT_REMOVEDIR ? 'D' : 'U', inode, 0, full, "");
    pthread_mutex_unlock(&lock);
    errno = reason;
    return done;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat found;
    return unlinkat(AT_FDCWD, path, inode_at(path, &found) && S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    char full[PATH_MAX];
    int seen = full_path(directory, path, full);
    pthread_mutex_lock(&lock);
    int done = syscall(SYS_mkdirat, directory, path, mode), reason = errno;
    if (seen && !done) note_name('M', 0, 0, full, "");
    pthread_mutex_unlock(&lock);
    errno = reason;
    return done;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat2(int from, const char *source, int to, const char *target, unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    struct stat moved, replaced;
    if (!full_path(from, source, old) | !full_path(to, target, new))
        return syscall(SYS_renameat2, from, source, to, target, flags);
    pthread_mutex_lock(&lock);
    ino_t inode = inode_at(old, &moved), gone = inode_at(new, &replaced);
    if (gone && S_ISREG(replaced.st_mode)) bury(new, gone);
    int done = syscall(SYS_renameat2, from, source, to, target, flags), reason = errno;
    if (!done) note_name(S_ISDIR(moved.st_mode) ? 'r' : 'R', inode, gone, old, new);
    pthread_mutex_unlock(&lock);
    errno = reason;
    return done;
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *source, int to, const char *target, int flags) {
    char new[PATH_MAX];
    struct stat found;
    int seen = full_path(to, target, new);
    pthread_mutex_lock(&lock);
    int done = syscall(SYS_linkat, from, source, to, target, flags), reason = errno;
    if (seen && !done) note_name('L', inode_at(new, &found), 0, new, "");
    pthread_mutex_unlock(&lock);
    errno = reason;
    return done;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

/* -- flushes -- */

/* Remove what processes before this one have noted of a file (0: of any) and were killed in its flush; tell whether
 * there was something. Only the names of notes of flushes have a point. */
static int inherit(ino_t inode, int strike) {
    char path[PATH_MAX], start[32];
    int found = 0, length = snprintf(start, sizeof start, "%lu.", (unsigned long)inode);
    DIR *directory = opendir(notes);
    for (struct dirent *one; directory && (one = readdir(directory));) {
        char *point = strchr(one->d_name, '.');
        if (!point || point == one->d_name || !point[1] || atoi(point + 1) == getpid()) continue;
        if (inode && strncmp(one->d_name, start, length)) continue;
        found = 1;
        snprintf(path, sizeof path, "%s/%s", notes, one->d_name);
        if (strike) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    }
    if (directory) closedir(directory);
    return found;
}

static int flush(int fd, int (*call)(int)) {
    char path[PATH_MAX] = "", pending[PATH_MAX], flushed[PATH_MAX], grave[PATH_MAX];
    struct stat found;
    if (names_fd < 0 || fstat(fd, &found) || !path_of(fd, path) || !(tracked(path) || !strcmp(path, above)))
        return call(fd);
    /* What is written while this flush runs is not covered by it. */
    pthread_mutex_lock(&lock);
    off_t noted = lseek(names_fd, 0, SEEK_END);
    note_path(pending, found.st_ino, 0);
    note_path(flushed, found.st_ino, ++flushes);
    int moved = !syscall(SYS_renameat, AT_FDCWD, pending, AT_FDCWD, flushed);
    pthread_mutex_unlock(&lock);
    struct timespec pause = {*delay_us / 1000000, *delay_us % 1000000 * 1000};
    nanosleep(&pause, NULL);
    int done = call(fd), reason = errno;
    if (!done) {
        if (moved) syscall(SYS_unlinkat, AT_FDCWD, flushed, 0);
        if (inherited) inherit(found.st_ino, 1);
        if (S_ISDIR(found.st_mode)) {
            pthread_mutex_lock(&lock);
            note_name('S', noted, 0, path, "");
            for (struct grave **at = &graves; *at;) {
                struct grave *one = *at;
                if (one->noted < noted && !strcmp(one->directory, path)) {
                    grave_path(grave, one->inode);
                    syscall(SYS_unlinkat, AT_FDCWD, grave, 0);
                    *at = one->next;
                    free(one);
                } else {
                    at = &one->next;
                }
            }
            pthread_mutex_unlock(&lock);
        }
    }
    errno = reason;
    return done;
}
static int flush_all(int fd) { return syscall(SYS_fsync, fd); }
static int flush_data(int fd) { return syscall(SYS_fdatasync, fd); }
int fsync(int fd) { return flush(fd, flush_all); }
int fdatasync(int fd) { return flush(fd, flush_data); }
