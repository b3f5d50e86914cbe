// What a shared build lets out: everything declared in a namespace marked DOSA_PUBLIC, and nothing else.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define DOSA_PUBLIC __attribute__((visibility("default")))
#else
#define DOSA_PUBLIC
#endif
