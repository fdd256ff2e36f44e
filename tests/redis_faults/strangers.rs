//! Servers that are no Redis: an error although the server goes on for ever, and a buffer that does
//! not grow.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind};
use memlock_tests::process::Server;
use memlock_tests::server::Memcached;

use crate::stores::redis::Redis;
use crate::{LEASE, refusal};

const TIMEOUTS: &str = "connect_timeout=300ms&io_timeout=300ms";
/// For servers that answer at once: on a busy machine, a wrong reply must not look like none.
const PATIENT: &str = "connect_timeout=20s&io_timeout=20s";
/// No client reads more of an endless reply.
const MOST: usize = 8 << 20;

/// A server that does this with each connection. Its threads end with their connections.
struct Stranger {
    address: String,
    sent: Arc<AtomicUsize>,
}

impl Stranger {
    fn start(behave: impl Fn(TcpStream, &AtomicUsize) + Send + Sync + 'static) -> Stranger {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sent = Arc::new(AtomicUsize::new(0));
        let (behave, counting) = (Arc::new(behave), Arc::clone(&sent));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (behave, counting) = (Arc::clone(&behave), Arc::clone(&counting));
                thread::spawn(move || behave(stream.unwrap(), &counting));
            }
        });
        Stranger { address, sent }
    }

    /// Reads a request, sends `first`, and then `more` again and again, with a pause.
    fn that_says(first: Vec<u8>, more: Vec<u8>, pause: Duration) -> Stranger {
        Stranger::start(move |mut stream, sent| {
            let _ = stream.read(&mut [0; 8192]);
            let mut text = &first;
            while stream.write_all(text).is_ok() {
                sent.fetch_add(text.len(), Ordering::Relaxed);
                text = &more;
                thread::sleep(pause);
                if more.is_empty() {
                    // Until the client closes the connection.
                    while matches!(stream.read(&mut [0; 8192]), Ok(1..)) {}
                    return;
                }
            }
        })
    }

    fn url(&self, timeouts: &str) -> String {
        format!("redis://{}?{timeouts}", self.address)
    }
}

/// The attempt ends with one of these errors. A client that waited for the end of the reply would
/// wait for ever.
#[track_caller]
fn fails(what: &str, url: &str, kinds: &[ErrorKind]) -> String {
    let error = refusal(url);
    assert!(kinds.contains(&error.kind()), "{what}: {:?} {error}", error.kind());
    let text = error.to_string();
    assert!(text.len() < 600 && !text.contains(char::is_control), "{what}: {text}");
    text
}

#[test]
fn what_is_no_redis_is_reported_and_not_waited_for() {
    let memcached = Memcached::start();
    let url = format!("redis://{}?{TIMEOUTS}", memcached.address());
    fails("memcached", &url, &[ErrorKind::Protocol, ErrorKind::Unreachable]);
    let none = Duration::ZERO;
    let long = Duration::from_millis(100);
    let protocol = &[ErrorKind::Protocol][..];
    let silence = &[ErrorKind::Unreachable][..];
    let either = &[ErrorKind::Protocol, ErrorKind::Unreachable][..];
    for (what, first, more, pause, kinds) in [
        (
            "HTTP",
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            &b""[..],
            none,
            protocol,
        ),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", b"", none, protocol),
        ("garbage", &[0xff, 0x00, 0x1b, 0x5b, 0x32, 0x4a, 0x0a], &[7; 4096], none, protocol),
        ("escapes in an error", b"-ERR \x1b[2J\x07 no\r\n", b"", none, protocol),
        ("a line without an end", b"+", &[b'a'; 65536], none, protocol),
        ("a string without an end", b"$1048576\r\n", &[b'a'; 65536], none, either),
        ("a string of 512 MiB", b"$536870912\r\n", &[b'a'; 65536], none, protocol),
        (
            "an array without an end",
            b"*1000000000\r\n",
            b"*0\r\n:1\r\n+OK\r\n$1\r\na\r\n",
            none,
            either,
        ),
        ("numbers without an end", b"", &[b':', b'1', b'\r', b'\n'].repeat(8192), none, protocol),
        ("a byte at a time", b"$", b"1", long, either),
        ("pushes", b">2\r\n+a\r\n+b\r\n", b"", none, protocol),
        ("nested", &b"*1\r\n".repeat(1000), b"", none, protocol),
        ("negative", b"$-7\r\n", b"", none, protocol),
        ("too many replies", &b"+OK\r\n".repeat(100), b"", none, protocol),
        ("nothing", b"", b"", none, silence),
    ] {
        let stranger = Stranger::that_says(first.to_vec(), more.to_vec(), pause);
        let timeouts = if kinds == protocol { PATIENT } else { TIMEOUTS };
        let said = fails(what, &stranger.url(timeouts), kinds);
        assert!(said.contains(&stranger.address), "{what}: {said}");
        assert!(!said.contains('\u{1b}'), "{what}: {said}");
        let sent = stranger.sent.load(Ordering::Relaxed);
        assert!(sent < MOST, "{what}: {sent} bytes were read");
    }
    let closes = Stranger::start(|_, _| {});
    fails("closes", &closes.url(TIMEOUTS), silence);
}

/// The handshake is that of a Redis, and what comes after it is not.
#[test]
fn a_server_that_loses_its_mind_is_given_up() {
    let redis = Redis::start(&[]);
    let address = redis.process().address();
    for (what, text) in [
        ("garbage", &b"\x00\x01\x02\r\n"[..]),
        ("a reply to something else", b":5\r\n"),
        ("two replies", b"+OK\r\n:99999999999999999\r\n+OK\r\n"),
        ("a negative fence", b"+OK\r\n:-1\r\n"),
        ("half a reply", b"+O"),
        ("a string that is too long", b"$9999999999\r\n"),
    ] {
        let address = address.clone();
        let mad = Stranger::start(move |client, _| {
            let server = TcpStream::connect(&address).unwrap();
            for stream in [&client, &server] {
                stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            }
            let mut bursts = 0;
            let mut buffer = vec![0; 65536];
            loop {
                match (&client).read(&mut buffer) {
                    Ok(0) => return,
                    Ok(read)
                        if bursts == 0 || buffer[..read].windows(6).any(|w| w == b"SCRIPT") =>
                    {
                        bursts += 1;
                        (&server).write_all(&buffer[..read]).unwrap();
                    }
                    Ok(_) => (&client).write_all(text).unwrap(),
                    Err(error) if error.kind() == IoKind::WouldBlock => {}
                    Err(_) => return,
                }
                if let Ok(read) = (&server).read(&mut buffer) {
                    (&client).write_all(&buffer[..read]).unwrap();
                }
            }
        });
        let client = Client::connect(&mad.url(TIMEOUTS)).unwrap();
        let locked = client.mutex("m", LEASE).unwrap().try_lock();
        match locked {
            Err(error) => {
                let kinds = [ErrorKind::Protocol, ErrorKind::Unreachable, ErrorKind::Unknown];
                assert!(kinds.contains(&error.kind()), "{what}: {error}");
            }
            // By its words, the lock was granted; the connection is not used again.
            Ok(lock) => assert!(what == "two replies" && lock.is_some(), "{what}"),
        }
    }
}
