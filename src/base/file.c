/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapping, whole reads, atomic writes, directories. May touch: libc, POSIX, base. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int open_regular(const char *path, int flags, size_t *size, m5_error *err)
{
    /* O_NONBLOCK: opening a pipe must not wait for its other end. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0) return m5_error_set(err, errno == ENOENT ? M5_ERR_NOTFOUND : M5_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return m5_error_set(err, M5_ERR_IO, "%s is not a regular file", path);
    }
    *size = (size_t)st.st_size;
    return fd;
}

static int map_open(m5_map *out, const char *path, int flags, m5_error *err)
{
    size_t n = 0;
    int fd = open_regular(path, flags, &n, err);
    if (fd < 0) return fd;
    void *p = NULL;
    if (n > 0) {
        p = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            int e = errno;
            close(fd);
            return m5_error_set(err, M5_ERR_IO, "cannot map %s: %s", path, strerror(e));
        }
    }
    close(fd);
    *out = (m5_map){p, n};
    return 0;
}

int m5_map_open(m5_map *out, const char *path, m5_error *err)
{
    return map_open(out, path, 0, err);
}

int m5_map_open_nofollow(m5_map *out, const char *path, m5_error *err)
{
    return map_open(out, path, O_NOFOLLOW, err);
}

void m5_map_close(m5_map *m)
{
    if (m->p) munmap((void *)m->p, m->n);
    *m = (m5_map){0};
}

/* Page-aligned advice for [offset, offset + n); inner pages only when dropping, so that neighbours keep theirs. */
static void advise(const m5_map *m, size_t offset, size_t n, int advice, bool inner)
{
    if (!m->p || offset >= m->n || n == 0) return;
    if (n > m->n - offset) n = m->n - offset;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = offset, end = offset + n;
    begin = inner ? (begin + page - 1) / page * page : begin / page * page;
    if (inner) end = end == m->n ? end : end / page * page;
    if (end > begin) posix_madvise((void *)(m->p + begin), end - begin, advice);
}

void m5_map_prefetch(const m5_map *m, size_t offset, size_t n)
{
    advise(m, offset, n, POSIX_MADV_WILLNEED, false);
}

void m5_map_drop(const m5_map *m, size_t offset, size_t n)
{
#ifdef __linux__
    /* glibc's posix_madvise ignores DONTNEED, so the pages would stay resident. */
    if (!m->p || offset >= m->n || n == 0) return;
    if (n > m->n - offset) n = m->n - offset;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = (offset + page - 1) / page * page;
    size_t end = offset + n == m->n ? m->n : (offset + n) / page * page;
    if (end > begin) madvise((void *)(m->p + begin), end - begin, MADV_DONTNEED);
#else
    advise(m, offset, n, POSIX_MADV_DONTNEED, true);
#endif
}

int m5_file_read(char **out, size_t *n_out, const char *path, size_t max_bytes, m5_error *err)
{
    size_t n = 0;
    int fd = open_regular(path, 0, &n, err);
    if (fd < 0) return fd;
    int rc = 0;
    char *p = NULL;
    if (n > max_bytes) {
        rc = m5_error_set(err, M5_ERR_LIMIT, "%s has %zu bytes, more than the limit of %zu", path, n, max_bytes);
        goto out;
    }
    p = m5_alloc(M5_MEM_MISC, n + 1);
    if (!p) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading %s", path);
        goto out;
    }
    size_t done = 0;
    while (done < n) {
        ssize_t got = read(fd, p + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (done != n) {
        rc = m5_error_set(err, M5_ERR_IO, "%s ended after %zu of %zu bytes", path, done, n);
        goto out;
    }
    p[n] = '\0';
    *out = p;
    *n_out = n;
    p = NULL;
out:
    m5_free(p);
    close(fd);
    return rc;
}

static int write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return -1;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

/* Writes parts in pieces to a new file beside path, and renames it. */
static int write_beside(const char *path, const m5_file_part *parts, int n_part, int mode, bool sync, bool (*pace)(void *, size_t), void *ctx,
                        m5_error *err)
{
    enum { PIECE_BYTES = 1 << 20 };
    int rc = 0, fd = -1;
    m5_buf tmp = {0};
    m5_buf_printf(&tmp, "%s.XXXXXX", path);
    if (tmp.failed) return m5_error_set(err, M5_ERR_NOMEM, "out of memory while writing %s", path);
    fd = mkstemp(tmp.p);
    if (fd < 0) {
        rc = m5_error_set(err, M5_ERR_IO, "cannot create a file beside %s: %s", path, strerror(errno));
        goto out;
    }
    for (int i = 0; i < n_part && rc == 0; i++) {
        for (size_t at = 0; at < parts[i].n && rc == 0; at += PIECE_BYTES) {
            size_t n = parts[i].n - at < PIECE_BYTES ? parts[i].n - at : PIECE_BYTES;
            if (pace && !pace(ctx, n))
                rc = m5_error_set(err, M5_ERR_CANCELLED, "writing %s was given up", path);
            else if (write_all(fd, (const char *)parts[i].p + at, n) != 0)
                rc = m5_error_set(err, M5_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        }
    }
    if (rc == 0 && (fchmod(fd, (mode_t)mode) != 0 || (sync && fsync(fd) != 0)))
        rc = m5_error_set(err, M5_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (rc == 0 && rename(tmp.p, path) != 0) rc = m5_error_set(err, M5_ERR_IO, "cannot rename to %s: %s", path, strerror(errno));
    if (rc) unlink(tmp.p);
out:
    if (fd >= 0) close(fd);
    m5_buf_free(&tmp);
    return rc;
}

int m5_file_write_atomic(const char *path, const void *data, size_t n, int mode, m5_error *err)
{
    return write_beside(path, &(m5_file_part){data, n}, 1, mode, true, NULL, NULL, err);
}

int m5_file_write_parts(const char *path, const m5_file_part *parts, int n_part, int mode, bool (*pace)(void *ctx, size_t n), void *ctx,
                        m5_error *err)
{
    return write_beside(path, parts, n_part, mode, false, pace, ctx, err);
}

int m5_file_remove(const char *path, m5_error *err)
{
    if (unlink(path) == 0 || errno == ENOENT) return 0;
    return m5_error_set(err, M5_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
}

bool m5_file_stat(const char *path, uint64_t *n_bytes, int64_t *unix_ms)
{
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    *n_bytes = (uint64_t)st.st_size;
#ifdef __APPLE__
    *unix_ms = (int64_t)st.st_mtimespec.tv_sec * 1000 + st.st_mtimespec.tv_nsec / 1000000;
#else
    *unix_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
#endif
    return true;
}

void m5_file_touch(const char *path)
{
    utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

uint64_t m5_disk_free_bytes(const char *dir)
{
    struct statvfs v;
    return statvfs(dir, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : 0;
}

bool m5_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool m5_path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

int m5_dir_make(const char *path, int mode, m5_error *err)
{
    char *p = m5_strdup(M5_MEM_MISC, path);
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    int rc = 0;
    for (size_t i = 1; p[0] && rc == 0; i++) {
        char c = p[i];
        if (c != '/' && c != '\0') continue;
        p[i] = '\0';
        if (mkdir(p, (mode_t)mode) != 0 && !(errno == EEXIST && m5_path_is_dir(p)))
            rc = m5_error_set(err, M5_ERR_IO, "cannot create folder %s: %s", p, strerror(errno));
        p[i] = c;
        if (c == '\0') break;
    }
    m5_free(p);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int m5_dir_list(char ***out, size_t *n_out, const char *path, m5_error *err)
{
    DIR *d = opendir(path);
    if (!d) return m5_error_set(err, errno == ENOENT ? M5_ERR_NOTFOUND : M5_ERR_IO, "cannot list %s: %s", path, strerror(errno));
    char **names = NULL;
    size_t n = 0, cap = 0;
    int rc = 0;
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 32;
            char **more = m5_realloc(M5_MEM_MISC, names, cap * sizeof *names);
            if (!more) {
                rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory while listing %s", path);
                break;
            }
            names = more;
        }
        names[n] = m5_strdup(M5_MEM_MISC, e->d_name);
        if (!names[n]) {
            rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory while listing %s", path);
            break;
        }
        n++;
    }
    closedir(d);
    if (rc) {
        for (size_t i = 0; i < n; i++) m5_free(names[i]);
        m5_free(names);
        return rc;
    }
    if (n) qsort(names, n, sizeof *names, by_name);
    *out = names;
    *n_out = n;
    return 0;
}
