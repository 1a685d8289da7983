/* glibc_2_28.h: pins, for the wheel, each libc function whose newest version is younger than
 * glibc 2.28 to the version that glibc has had on x86-64 since 2.2.5, still there and the same by
 * what we ask of it: since 2.34 pthreads and dlopen are linked from libc itself, since 2.29 exp and
 * log leave errno alone.
 *
 * Included before every file of the wheel's library (cmake/wheel.cmake). A function missing here
 * shows as a symbol newer than 2.28 in tests/python/test_python_wheel.py.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_GLIBC_2_28_H
#define MXA_GLIBC_2_28_H

#define MXA_PIN(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")

MXA_PIN(dlopen);
MXA_PIN(dlsym);
MXA_PIN(dlclose);
MXA_PIN(dlerror);
MXA_PIN(pthread_create);
MXA_PIN(pthread_join);
MXA_PIN(pthread_once);
MXA_PIN(pthread_mutex_trylock);
MXA_PIN(pthread_sigmask);
MXA_PIN(exp);
MXA_PIN(exp2);
MXA_PIN(log);
MXA_PIN(log2);
MXA_PIN(pow);

#endif
