/* libcdsprpc.so: shared memory for clients that allocate it themselves and hand its descriptor over. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

struct piece {
    void *data;
    size_t size;
    int fd;
    struct piece *next;
};

static struct piece *pieces;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API void rpcmem_init(void) {}
API void rpcmem_deinit(void) {}

API void *rpcmem_alloc2(int heap, uint32_t flags, size_t size)
{
    (void)heap, (void)flags;
    struct piece *made = size && size < (size_t)1 << 40 ? malloc(sizeof *made) : NULL;
    if (!made)
        return NULL;
    made->size = size;
    made->fd = memfd_create("rpcmem", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made->fd < 0 || ftruncate(made->fd, (off_t)size))
        goto failed;
    made->data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (made->data == MAP_FAILED)
        goto failed;
    pthread_mutex_lock(&lock);
    made->next = pieces;
    pieces = made;
    pthread_mutex_unlock(&lock);
    return made->data;
failed:
    if (made->fd >= 0)
        close(made->fd);
    free(made);
    return NULL;
}

API void *rpcmem_alloc(int heap, uint32_t flags, int size)
{
    return size > 0 ? rpcmem_alloc2(heap, flags, (size_t)size) : NULL;
}

API void rpcmem_free(void *data)
{
    pthread_mutex_lock(&lock);
    struct piece **place = &pieces;
    while (*place && (*place)->data != data)
        place = &(*place)->next;
    struct piece *found = *place;
    if (found)
        *place = found->next;
    pthread_mutex_unlock(&lock);
    if (!found)
        return;
    munmap(found->data, found->size);
    close(found->fd);
    free(found);
}

API int rpcmem_to_fd(void *data)
{
    int fd = -1;
    pthread_mutex_lock(&lock);
    for (struct piece *piece = pieces; piece && fd < 0; piece = piece->next)
        if (data >= piece->data && (char *)data < (char *)piece->data + piece->size)
            fd = piece->fd;
    pthread_mutex_unlock(&lock);
    return fd;
}

/* Tells the device of a buffer; here it is told when the memory is registered. */
API void remote_register_buf_attr2(void *data, size_t size, int fd, int attributes)
{
    (void)data, (void)size, (void)fd, (void)attributes;
}

API void remote_register_buf(void *data, int size, int fd)
{
    (void)data, (void)size, (void)fd;
}
