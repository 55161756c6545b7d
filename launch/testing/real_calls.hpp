#pragma once
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace troupe::testing {

/// The C library's function of a name that this library defines, too. Found at the first call, which may come before
/// any constructor has run.
template <class Function>
class RealCall {
 public:
  constexpr explicit RealCall(const char* name, const char* version = nullptr) : name_(name), version_(version) {}
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    auto* function = found_.load(std::memory_order_relaxed);
    if (function == nullptr) {
      void* symbol = version_ != nullptr ? ::dlvsym(RTLD_NEXT, name_, version_) : nullptr;
      if (symbol == nullptr) symbol = ::dlsym(RTLD_NEXT, name_);
      function = reinterpret_cast<Function*>(symbol);
      found_.store(function, std::memory_order_relaxed);
    }
    return function(arguments...);
  }

 private:
  const char* name_;
  const char* version_;  // if the C library keeps an older function of the same name
  std::atomic<Function*> found_{nullptr};
};

namespace real {

inline constinit RealCall<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)> create("pthread_create");
inline constinit RealCall<int(pthread_t, void**)> join("pthread_join");
inline constinit RealCall<int(pthread_mutex_t*)> lock("pthread_mutex_lock");
inline constinit RealCall<int(pthread_mutex_t*)> trylock("pthread_mutex_trylock");
inline constinit RealCall<int(pthread_mutex_t*, const timespec*)> timedlock("pthread_mutex_timedlock");
inline constinit RealCall<int(pthread_mutex_t*, clockid_t, const timespec*)> clocklock("pthread_mutex_clocklock");
inline constinit RealCall<int(pthread_mutex_t*)> unlock("pthread_mutex_unlock");
inline constinit RealCall<int(pthread_cond_t*, pthread_mutex_t*)> cond_wait("pthread_cond_wait", "GLIBC_2.3.2");
inline constinit RealCall<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)> cond_timedwait(
    "pthread_cond_timedwait", "GLIBC_2.3.2");
inline constinit RealCall<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)> cond_clockwait(
    "pthread_cond_clockwait");
inline constinit RealCall<int(pthread_cond_t*)> cond_signal("pthread_cond_signal", "GLIBC_2.3.2");
inline constinit RealCall<int(pthread_cond_t*)> cond_broadcast("pthread_cond_broadcast", "GLIBC_2.3.2");
inline constinit RealCall<int(pthread_rwlock_t*)> rdlock("pthread_rwlock_rdlock");
inline constinit RealCall<int(pthread_rwlock_t*)> tryrdlock("pthread_rwlock_tryrdlock");
inline constinit RealCall<int(pthread_rwlock_t*)> wrlock("pthread_rwlock_wrlock");
inline constinit RealCall<int(pthread_rwlock_t*)> trywrlock("pthread_rwlock_trywrlock");
inline constinit RealCall<int(pthread_rwlock_t*)> rwunlock("pthread_rwlock_unlock");
inline constinit RealCall<int(pthread_once_t*, void (*)())> once("pthread_once");
inline constinit RealCall<int(std::int64_t*)> guard_acquire("__cxa_guard_acquire");
inline constinit RealCall<void(std::int64_t*)> guard_release("__cxa_guard_release");
inline constinit RealCall<void(std::int64_t*)> guard_abort("__cxa_guard_abort");
inline constinit RealCall<int(sem_t*)> sem_wait("sem_wait", "GLIBC_2.2.5");
inline constinit RealCall<int(sem_t*)> sem_trywait("sem_trywait");
inline constinit RealCall<int(sem_t*, const timespec*)> sem_timedwait("sem_timedwait");
inline constinit RealCall<int(sem_t*, clockid_t, const timespec*)> sem_clockwait("sem_clockwait");
inline constinit RealCall<int(sem_t*)> sem_post("sem_post");
inline constinit RealCall<long(long, long, long, long, long, long, long)> syscall("syscall");
inline constinit RealCall<int()> sched_yield("sched_yield");
inline constinit RealCall<int(clockid_t, int, const timespec*, timespec*)> clock_nanosleep("clock_nanosleep");
inline constinit RealCall<int(clockid_t, timespec*)> clock_gettime("clock_gettime");
inline constinit RealCall<int(pollfd*, nfds_t, int)> poll("poll");

}  // namespace real
}  // namespace troupe::testing
