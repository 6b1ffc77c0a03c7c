/* Arguments, layout and threads: see native.h. */
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>

#include "native.h"

int is_metadata_query(const XLA_FFI_CallFrame* frame) {
  if (frame->extension_start == NULL || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  metadata->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  metadata->api_version.extension_start = NULL;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return 1;
}

void* operand(const XLA_FFI_CallFrame* frame, int number) {
  return ((XLA_FFI_Buffer*)frame->args.args[number])->data;
}

int64_t dimension(const XLA_FFI_CallFrame* frame, int operand_number, int axis) {
  return ((XLA_FFI_Buffer*)frame->args.args[operand_number])->dims[axis];
}

void* result(const XLA_FFI_CallFrame* frame, int number) {
  return ((XLA_FFI_Buffer*)frame->rets.rets[number])->data;
}

/* Aborts for a missing attribute, which only mismatched versions of Python and C can cause. */
static const void* find(const XLA_FFI_CallFrame* frame, const char* name) {
  const XLA_FFI_Attrs* attrs = &frame->attrs;
  for (int64_t i = 0; i < attrs->size; i++)
    if (attrs->names[i]->len == strlen(name) && !memcmp(attrs->names[i]->ptr, name, strlen(name)))
      return attrs->attrs[i];
  abort();
}

int64_t attribute(const XLA_FFI_CallFrame* frame, const char* name) {
  return *(const int64_t*)((const XLA_FFI_Scalar*)find(frame, name))->value;
}

const int64_t* table(const XLA_FFI_CallFrame* frame, const char* name, int64_t* size) {
  const XLA_FFI_Array* array = find(frame, name);
  *size = (int64_t)array->size;
  return array->data;
}

Layout layout_of(const XLA_FFI_CallFrame* frame) {
  Layout layout = {.block = attribute(frame, "block")};
  int64_t size;
  layout.starts = table(frame, "starts", &size);
  layout.firsts = table(frame, "firsts", &size);
  layout.tensors = size - 1;
  return layout;
}

Segment segment_at(const Layout* layout, int64_t element) {
  int64_t tensor = find_last(layout->starts, layout->tensors, element); /* the last, as tensors may be empty */
  int64_t block = (element - layout->starts[tensor]) / layout->block;
  int64_t begin = layout->starts[tensor] + block * layout->block;
  int64_t rest = layout->starts[tensor + 1] - begin;
  return (Segment){layout->firsts[tensor] + block, tensor, begin, begin + minimum(rest, layout->block)};
}

void* create_plain_job(size_t size) {
  void* job = malloc(size);
  if (job == NULL) abort();
  return job;
}

void* create_job(const XLA_FFI_CallFrame* frame, size_t size, void* const* buffers, Memory* memory) {
  *memory = (Memory){.layout = layout_of(frame)};
  int64_t count = memory->layout.tensors, is_split = attribute(frame, "is_split");
  char* job = create_plain_job(size + (size_t)count * sizeof(float*));
  memory->tensors = (float**)(job + size);
  for (int64_t i = 0; i < count; i++) {
    float* buffer = ((XLA_FFI_Buffer*)buffers[is_split ? i : 0])->data;
    memory->tensors[i] = is_split ? buffer : buffer + memory->layout.starts[i];
  }
  return job;
}

/* The threads that work on one call; the last one to leave frees this. */
typedef struct Crew {
  Work* work;
  const void* job;
  void* own_job; /* the job, to be freed, if the caller does not wait; else NULL */
  int64_t items, done;
  atomic_int_fast64_t next;
  atomic_int members;
  fenv_t environment; /* the caller's, as XLA flushes denormals to zero on some of its threads only */
  pthread_mutex_t mutex;
  pthread_cond_t finished;
  const XLA_FFI_Api* api;
  XLA_FFI_Future* future; /* NULL if the caller waits */
} Crew;

/* Works on items until none is left; returns whether this thread finished the last one. */
static int take_items(Crew* crew) {
  int64_t own = 0;
  for (int64_t item; (item = atomic_fetch_add(&crew->next, 1)) < crew->items; own++) crew->work(crew->job, item);
  if (!own) return 0;
  pthread_mutex_lock(&crew->mutex);
  crew->done += own;
  int is_done = crew->done == crew->items;
  if (is_done) pthread_cond_signal(&crew->finished);
  pthread_mutex_unlock(&crew->mutex);
  return is_done;
}

static void leave(Crew* crew) {
  if (atomic_fetch_sub(&crew->members, 1) > 1) return;
  pthread_cond_destroy(&crew->finished);
  pthread_mutex_destroy(&crew->mutex);
  free(crew->own_job);
  free(crew);
}

/* Completes the call. XLA may then do long work on this thread, so the thread has left the crew before. */
static void complete(const XLA_FFI_Api* api, XLA_FFI_Future* future) {
  XLA_FFI_Future_SetAvailable_Args args = {
      .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .future = future};
  api->XLA_FFI_Future_SetAvailable(&args);
}

static void help(void* data) {
  Crew* crew = data;
  const XLA_FFI_Api* api = crew->api;
  XLA_FFI_Future* future = crew->future;
  fenv_t own;
  fegetenv(&own);
  fesetenv(&crew->environment);
  int is_done = take_items(crew);
  fesetenv(&own);
  leave(crew);
  if (is_done && future != NULL) complete(api, future);
}

static int is_error(const XLA_FFI_CallFrame* frame, XLA_FFI_Error* error) {
  if (error == NULL) return 0;
  XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  frame->api->XLA_FFI_Error_Destroy(&args);
  return 1;
}

static int64_t count_threads(const XLA_FFI_CallFrame* frame) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {
      .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, .ctx = frame->ctx, .num_threads = &threads};
  return is_error(frame, frame->api->XLA_FFI_ThreadPool_NumThreads(&args)) ? 1 : threads;
}

static int schedule(const XLA_FFI_CallFrame* frame, Crew* crew) {
  XLA_FFI_ThreadPool_Schedule_Args args = {
      .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, .ctx = frame->ctx, .task = help, .data = crew};
  atomic_fetch_add(&crew->members, 1);
  if (!is_error(frame, frame->api->XLA_FFI_ThreadPool_Schedule(&args))) return 1;
  atomic_fetch_sub(&crew->members, 1);
  return 0;
}

static Crew* gather_crew(const XLA_FFI_CallFrame* frame, int64_t items, Work* work, const void* job) {
  Crew* crew = malloc(sizeof *crew);
  if (crew == NULL) return NULL;
  *crew = (Crew){.work = work, .job = job, .items = items, .members = 1, .api = frame->api};
  fegetenv(&crew->environment);
  pthread_mutex_init(&crew->mutex, NULL);
  pthread_cond_init(&crew->finished, NULL);
  return crew;
}

void run_items(const XLA_FFI_CallFrame* frame, int64_t items, Work* work, const void* job) {
  int64_t helpers = items > 1 ? minimum(count_threads(frame), items) - 1 : 0;
  Crew* crew = helpers > 0 ? gather_crew(frame, items, work, job) : NULL;
  if (crew == NULL) {
    for (int64_t item = 0; item < items; item++) work(job, item);
    return;
  }
  while (helpers > 0 && schedule(frame, crew)) helpers--;
  take_items(crew);
  /* Waits only for items that were taken, as other threads of XLA may be busy, or in a collective, for long. */
  pthread_mutex_lock(&crew->mutex);
  while (crew->done < crew->items) pthread_cond_wait(&crew->finished, &crew->mutex);
  pthread_mutex_unlock(&crew->mutex);
  leave(crew);
}

void start_items(XLA_FFI_CallFrame* frame, int64_t items, Work* work, void* job) {
  int64_t threads = minimum(count_threads(frame) - 1, items), helpers = 0;
  if (threads < 1) threads = 1;
  Crew* crew = items > 1 ? gather_crew(frame, items, work, job) : NULL;
  XLA_FFI_Future_Create_Args future = {.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE};
  if (crew == NULL || is_error(frame, frame->api->XLA_FFI_Future_Create(&future))) {
    if (crew != NULL) leave(crew);
    for (int64_t item = 0; item < items; item++) work(job, item);
    free(job);
    return;
  }
  crew->own_job = job;
  crew->future = frame->future = future.future;
  while (helpers < threads && schedule(frame, crew)) helpers++;
  if (helpers > 0) leave(crew);
  else help(crew);
}

void run_job(XLA_FFI_CallFrame* frame, int64_t items, Work* work, void* job) {
  if (attribute(frame, "is_split")) {
    start_items(frame, items, work, job);
  } else {
    run_items(frame, items, work, job);
    free(job);
  }
}
