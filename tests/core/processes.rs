//! Several processes: kill -9, SIGSTOP, fork, and plain memcached clients beside us.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Answer, Client, Extension, Release, bare};
use memlock_tests::launch::until;
use memlock_tests::server::Memcached;
use memlock_tests::{assert_safe, assert_safe_eq};

const LEASE: Duration = Duration::from_secs(30);

/// Another process that holds a lock.
struct Holder {
    child: Child,
    since: Moment,
    fence: u64,
}

impl Holder {
    fn start(url: &str, name: &str, lease: Duration) -> Holder {
        let millis = lease.as_millis().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_holder"))
            .args([url, "lock", name, &millis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["held", since, fence] = words[..] else { panic!("the holder said {line:?}") };
        let since = Moment::from_boot(Duration::from_nanos(since.parse().unwrap()));
        Holder { child, since, fence: fence.parse().unwrap() }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn unlock(mut self) -> String {
        self.child.stdin.as_mut().unwrap().write_all(b"unlock\n").unwrap();
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How soon the server ends it is asserted in `leases`.
#[test]
fn a_dead_holders_lock_comes_free_and_not_before_its_lease_is_over() {
    let server = Memcached::start();
    let lease = Duration::from_secs(3);
    let holder = Holder::start(&server.url(), "m", lease);
    holder.signal(libc::SIGKILL);
    let mutex = Client::connect(&server.url()).unwrap().mutex("m", LEASE).unwrap();
    let mut lock = mutex.lock_for(2 * LEASE).unwrap().expect("it does not come free");
    let freed = SystemClock.now().since(holder.since);
    assert_safe!(freed > lease, "granted twice after {freed:?}");
    assert_safe!(lock.fence() > holder.fence, "the fence did not rise");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn a_stopped_holder_wakes_up_without_its_lock() {
    let server = Memcached::start();
    let holder = Holder::start(&server.url(), "m", Duration::from_secs(2));
    holder.signal(libc::SIGSTOP);
    let mut lock =
        Client::connect(&server.url()).unwrap().mutex("m", LEASE).unwrap().lock().unwrap();
    holder.signal(libc::SIGCONT);
    assert_eq!(holder.unlock(), "Lost");
    assert_safe_eq!(
        lock.unlock().unwrap(),
        Release::Released,
        "the successor's lock was left alone"
    );
}

#[test]
fn a_plain_clients_add_and_ours_exclude_each_other() {
    let server = Memcached::start();
    let mut plain = server.plain();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("xyz", LEASE).unwrap();
    assert!(plain.add("lock:xyz", "1", 60));
    assert_safe!(mutex.try_lock().unwrap().is_none(), "held twice");
    let owner = mutex.owner().unwrap().unwrap();
    assert_eq!((owner.record, owner.value), (None, b"1".to_vec()));
    assert!(plain.delete("lock:xyz"));
    let mut lock = mutex.try_lock().unwrap().unwrap();
    assert_safe!(!plain.add("lock:xyz", "1", 60), "held twice");
    let value = String::from_utf8(plain.get("lock:xyz").unwrap()).unwrap();
    assert!(
        value.starts_with("memlock/1 ") && value.contains(&format!(" {} ", std::process::id())),
        "{value}"
    );
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(plain.add("lock:xyz", "1", 60));
    let token = mutex.owner().unwrap().unwrap().token();
    assert!(
        mutex.force_unlock(&token).unwrap(),
        "an operator can take off a plain client's lock too"
    );
    assert_eq!(plain.get("lock:xyz"), None);
}

#[test]
fn somebody_who_touches_our_item_does_not_lose_us_the_lock() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    // Appending nothing gives the item another version and leaves its value.
    assert!(server.plain().command("ms lock:m 0 MA\r\n").starts_with("HD"));
    assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
    assert!(server.plain().command("ms lock:m 0 MA\r\n").starts_with("HD"));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(server.plain().get("lock:m"), None);
}

/// Runs `body` in a forked child and gives its exit code.
fn in_a_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body` and leaves by `_exit`; it uses nothing that a thread of the
    // parent may have locked, which is what is tested here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // A child that hangs is ended by this; the parent then sees the signal.
        // SAFETY: two plain system calls.
        unsafe { libc::alarm(50) };
        let code = body();
        // SAFETY: as above.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let mut ended = || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
    until("the child has ended", || ended() == child);
    assert!(libc::WIFEXITED(status), "the child hung or crashed: {status}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_forked_child_holds_nothing_of_its_parents() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut held = Some(mutex.lock().unwrap());
    let code = in_a_child(|| {
        let mut lock = held.take().unwrap();
        let told = [
            lock.remaining().is_zero(),
            lock.unlock().unwrap() == Release::NotHeld,
            lock.extend(LEASE).unwrap() == Extension::NotHeld,
            mutex.try_lock().unwrap().is_none(),
            client.mutex("child", LEASE).unwrap().lock().unwrap().unlock().unwrap()
                == Release::Released,
        ];
        drop(lock);
        i32::from(told.contains(&false))
    });
    assert_eq!(code, 0);
    assert_safe!(
        mutex.owner().unwrap().is_some(),
        "the child's copy was dropped, and the parent's lock stands"
    );
    assert_eq!(held.unwrap().unlock().unwrap(), Release::Released);
}

/// One test for all that the bare functions do: the process has one default client.
#[test]
fn the_bare_functions_belong_to_the_process() {
    let server = Memcached::start();
    bare::init(&server.url()).unwrap();
    assert!(bare::init(&server.url()).is_err(), "it is chosen once");
    let lease = LEASE;
    assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::NotHeld);
    assert_eq!(bare::mutex_lock(b"m", lease).unwrap(), Answer::Ok);
    assert_eq!(
        bare::mutex_lock(b"m", lease).unwrap_err().kind(),
        memlock_core::ErrorKind::Deadlock
    );
    assert_eq!(bare::mutex_lock_nonblock(b"m", lease).unwrap(), Answer::Busy);
    assert_eq!(
        in_a_child(|| bare::mutex_unlock(b"m").unwrap().answer().code()),
        Answer::NotHeld.code()
    );
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(bare::mutex_lock_nonblock(b"m", lease).unwrap(), Answer::Busy));
    });
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::Ok));
    });
    assert_eq!(bare::mutex_lock(b"m", lease).unwrap(), Answer::Ok);
    assert!(server.plain().delete("lock:m"));
    assert_eq!(bare::mutex_unlock(b"m").unwrap(), Answer::Lost);
    // A thread that overran its lease does not release the thread that came after it.
    assert_eq!(bare::mutex_lock(b"overrun", Duration::from_secs(2)).unwrap(), Answer::Ok);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(bare::mutex_lock(b"overrun", lease).unwrap(), Answer::Ok));
    });
    assert_eq!(bare::mutex_unlock(b"overrun").unwrap(), Answer::Lost);
    assert!(server.plain().get("lock:overrun").is_some(), "the successor's lock was left alone");
    assert_eq!(bare::mutex_unlock(b"overrun").unwrap(), Answer::Ok, "any thread may unlock it");
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::NotFound);
    assert_eq!(bare::distinct_list_set_up(b"s", lease).unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_set_up(b"s", lease).unwrap(), Answer::Exists);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::Duplicate);
    assert_eq!(
        in_a_child(|| bare::distinct_list_insert(b"s", b"k").unwrap().answer().code()),
        Answer::Duplicate.code()
    );
    assert_eq!(bare::distinct_list_tear_down(b"s").unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::NotFound);
    let other = Client::connect(&server.url()).unwrap();
    let _ = other.distinct_list("s").unwrap().set_up(lease).unwrap();
    assert_eq!(
        bare::distinct_list_insert(b"s", b"late").unwrap(),
        Answer::NotFound,
        "not our session"
    );
    assert_eq!(
        bare::distinct_list_tear_down(b"s").unwrap(),
        Answer::NotFound,
        "nor ours to tear down"
    );
    assert_eq!(bare::distinct_list_set_up(b"s", lease).unwrap(), Answer::Exists);
    assert_eq!(bare::distinct_list_insert(b"s", b"k").unwrap(), Answer::Ok);
    assert_eq!(bare::distinct_list_tear_down(b"s").unwrap(), Answer::Ok);
}

#[test]
fn a_client_has_no_threads_of_its_own() {
    let server = Memcached::start();
    let holder = Holder::start(&server.url(), "m", LEASE);
    let threads = std::fs::read_dir(format!("/proc/{}/task", holder.child.id())).unwrap().count();
    assert_eq!(threads, 1);
}

/// It wakes up to look, now and then; a busy machine makes it do so less often.
#[test]
fn a_waiter_sleeps_between_its_looks() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let client = client.clone();
        move || {
            let mutex = client.mutex("m", LEASE).unwrap();
            let before = wake_ups();
            assert!(mutex.lock_for(Duration::from_secs(2)).unwrap().is_none());
            wake_ups() - before
        }
    });
    let often = waiter.join().unwrap();
    assert!(often < 40, "it woke up {often} times in two seconds of waiting");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// How often the current thread has gone to sleep, or was made to.
fn wake_ups() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let said = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    said.unwrap().trim().parse().unwrap()
}
