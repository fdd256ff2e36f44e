//! Encrypted connections.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind};
use memlock_tests::daemon;
use memlock_tests::launch::{ReservedPort, until};
use memlock_tests::process::Server;
use memlock_tests::sigpipe;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, PATIENCE, client, refusal, refused, works};

/// A connection that was idle for so long is checked before it is used again.
const UNCHECKED: Duration = Duration::from_millis(150);
const PATIENT: &str = "connect_timeout=20s&io_timeout=20s";

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Without it, a certificate that is made so is one of an authority.
const SELF_SIGNED: &str = " -addext basicConstraints=critical,CA:FALSE";

/// Certificate authorities and certificates, made by the command `openssl`.
struct Certificates(PathBuf);

impl Certificates {
    /// Those that all tests share.
    fn get() -> &'static Certificates {
        static MADE: OnceLock<Certificates> = OnceLock::new();
        MADE.get_or_init(Certificates::make)
    }

    fn make() -> Certificates {
        let directory = std::env::temp_dir().join(format!("memlock-tls-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let made = Certificates(directory);
        for ca in ["ca", "other-ca"] {
            let subject = format!("/CN={ca}");
            let (key, certificate) = (format!("{ca}.key"), format!("{ca}.crt"));
            made.openssl(&format!(
                "req -x509 {NEW_KEY} -days 2 -subj {subject} -keyout {key} -out {certificate}"
            ));
            let configuration = format!(
                "[ca]\ndefault_ca=own\n[own]\ndatabase={ca}.db\nserial={ca}.serial\nnew_certs_dir=.\n\
                 default_md=sha256\npolicy=any\ncopy_extensions=copy\nunique_subject=no\n\
                 [any]\ncommonName=supplied\n"
            );
            made.write(&format!("{ca}.cnf"), &configuration);
            made.write(&format!("{ca}.db"), "");
            made.write(&format!("{ca}.serial"), "01\n");
        }
        let valid = ("20200101000000Z", "20990101000000Z");
        let over = ("20200101000000Z", "20200102000000Z");
        let names = "DNS:localhost,IP:127.0.0.1";
        made.sign("server", "ca", names, valid);
        made.sign("elsewhere", "ca", "DNS:elsewhere.example", valid);
        made.sign("expired", "ca", names, over);
        made.sign("client", "ca", "DNS:client", valid);
        made.sign("stranger", "other-ca", "DNS:client", valid);
        for (name, more) in [("of-authority", ""), ("self-signed", SELF_SIGNED)] {
            let extension = format!("-addext subjectAltName={names}{more}");
            made.openssl(&format!(
                "req -x509 {NEW_KEY} -days 2 -subj /CN={name} {extension} -keyout {name}.key -out {name}.crt"
            ));
        }
        made
    }

    fn sign(&self, name: &str, ca: &str, names: &str, (from, to): (&str, &str)) {
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        let (subject, extension) = (format!("/CN={name}"), format!("subjectAltName={names}"));
        self.openssl(&format!(
            "req -new {NEW_KEY} -subj {subject} -addext {extension} -keyout {key} -out {request}"
        ));
        let signed = format!("-in {request} -startdate {from} -enddate {to} -out {name}.crt");
        self.openssl(&format!(
            "ca -batch -notext -config {ca}.cnf -cert {ca}.crt -keyfile {ca}.key {signed}"
        ));
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl").args(args.split(' ')).current_dir(&self.0).output();
        let output = output.expect("these tests need the command openssl");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {args}: {said}");
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

/// A server with TLS on a second port.
struct Encrypted {
    redis: Redis,
    port: ReservedPort,
}

impl Encrypted {
    fn start(certificate: &str, args: &[&str]) -> Encrypted {
        let made = Certificates::get();
        let port = ReservedPort::any();
        let number = port.number().to_string();
        let (key, ca) = (made.path(&format!("{certificate}.key")), made.path("ca.crt"));
        let certificate = made.path(&format!("{certificate}.crt"));
        let tls = format!(
            "--tls-port {number} --tls-cert-file {certificate} --tls-key-file {key} \
             --tls-ca-cert-file {ca} --tls-auth-clients"
        );
        let tls: Vec<&str> = tls.split(' ').collect();
        let args = if args.is_empty() { &["no"] } else { args };
        Encrypted { redis: Redis::start(&[&tls[..], args].concat()), port }
    }

    fn url(&self, host: &str, parameters: &str) -> String {
        let ca = Certificates::get().path("ca.crt");
        format!("rediss://{host}:{}?tls_ca={ca}&{parameters}", self.port.number())
    }
}

#[test]
fn connections_that_are_reset_end_no_program() {
    let server = Encrypted::start("server", &[]);
    let number = server.port.number().to_string();
    sigpipe::is_not_raised_by_resets(&format!("127.0.0.1:{number}"), |address| {
        let (_, port) = address.split_once(':').unwrap();
        server.url("localhost", PATIENT).replace(&number, port)
    });
}

#[test]
fn what_a_daemon_opens_later_is_left_alone() {
    let server = Encrypted::start("server", &[]);
    daemon::keeps_its_files_at_once(&server.url("localhost", ""));
    daemon::keeps_its_files_after_a_pause(&server.url("localhost", ""));
}

#[test]
fn everything_works_over_tls_and_connections_are_kept() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = Encrypted::start("server", &["no", "--tls-protocols", version]);
        // A reply that is late on a busy machine would cost the connection.
        let client = Client::connect(&server.url("127.0.0.1", PATIENT)).unwrap();
        let mut admin = server.redis.connection();
        let mut connections = move || {
            let stats: String = reply(&mut admin, &["INFO", "stats"]);
            let field =
                stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
            field.unwrap().parse::<usize>().unwrap()
        };
        works(&client, "m");
        let before = connections();
        for _ in 0..4 {
            thread::sleep(UNCHECKED);
            drop(client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap());
        }
        // Each key is several commands, and all are in one packet.
        let mut list = client.distinct_list("l").unwrap();
        let _ = list.set_up(LEASE).unwrap();
        let keys: Vec<String> =
            (0..5000).map(|key| format!("a key of the list {key:0100}")).collect();
        let inserted = list.insert_many(&keys).unwrap().unwrap();
        assert_eq!(inserted.len(), keys.len());
        assert_eq!(list.entries().unwrap().unwrap().count(), keys.len());
        let inserted = list.insert_many(&keys).unwrap().unwrap();
        assert!(inserted.iter().all(|key| matches!(key, memlock_core::Insertion::Duplicate(_))));
        thread::sleep(UNCHECKED);
        works(&client, "m");
        assert_eq!(connections(), before, "{version}: connections were dropped");
        // By name as well, and beside a client without TLS.
        let other = crate::client(&server.redis);
        let named = Client::connect(&server.url("localhost", PATIENT)).unwrap();
        let lock = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| named.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
            until("it waits", || server.redis.reply::<usize>(&["EXISTS", "{lock:m}%wait"]) > 0);
            drop(lock);
            assert!(waiter.join().unwrap().unwrap().is_some());
        });
        // The server closes idle connections.
        let () = server.redis.reply(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        thread::sleep(UNCHECKED);
        works(&client, "m");
    }
}

#[test]
fn a_server_that_cannot_be_verified_is_refused_with_the_reason() {
    let made = Certificates::get();
    let server = Encrypted::start("server", &[]);
    let other = format!("tls_ca={}", made.path("other-ca.crt"));
    let own = format!("tls_ca={}", made.path("ca.crt"));
    let right = server.url("127.0.0.1", PATIENT);
    works(&Client::connect(&right).unwrap(), "m");
    for (what, url, says) in [
        ("another authority", right.replace(&own, &other), "UnknownIssuer"),
        ("the host's authorities", right.replace(&own, "pool=1"), "UnknownIssuer"),
        ("another name", Encrypted::start("elsewhere", &[]).url("127.0.0.1", PATIENT), "127.0.0.1"),
        ("over", Encrypted::start("expired", &[]).url("127.0.0.1", PATIENT), "xpired"),
    ] {
        let error = refusal(&url);
        // Where the host has no authorities, the URL is at fault.
        let kinds = [ErrorKind::Unreachable, ErrorKind::Config];
        assert!(kinds.contains(&error.kind()), "{what}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(says) || text.contains("No certificate authority"),
            "{what}: {error}"
        );
    }
}

/// Most self-signed certificates are made by a command that makes one of an authority.
#[test]
fn a_servers_own_certificate_is_trusted_if_it_is_self_signed_and_of_no_authority() {
    let made = Certificates::get();
    let own = |name: &str| {
        let server = Encrypted::start(name, &[]);
        let url = server.url("127.0.0.1", PATIENT);
        let ca = format!("tls_ca={}", made.path("ca.crt"));
        let url = url.replace(&ca, &format!("tls_ca={}", made.path(&format!("{name}.crt"))));
        (server, url)
    };
    let (_server, url) = own("self-signed");
    works(&Client::connect(&url).unwrap(), "m");
    let (_server, url) = own("of-authority");
    refused(&url, ErrorKind::Unreachable, SELF_SIGNED);
    refused(&url, ErrorKind::Unreachable, "subjectAltName=IP:127.0.0.1");
    let (_server, url) = own("server");
    refused(&url, ErrorKind::Unreachable, "the authority that has signed");
}

#[test]
fn both_ends_have_to_agree_on_tls() {
    let server = Encrypted::start("server", &[]);
    let plain = server.redis.process().address();
    let ca = Certificates::get().path("ca.crt");
    let url = format!("rediss://{plain}?tls_ca={ca}&{PATIENT}");
    refused(&url, ErrorKind::Unreachable, "Is TLS on there");
    let url = format!("redis://127.0.0.1:{}?{PATIENT}", server.port.number());
    let error = refusal(&url);
    assert!([ErrorKind::Unreachable, ErrorKind::Protocol].contains(&error.kind()), "{error}");
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[test]
fn a_client_has_a_certificate_where_the_server_asks_for_one() {
    let made = Certificates::get();
    let server = Encrypted::start("server", &["yes"]);
    let own = |name: &str, key: &str| {
        let (certificate, key) = (made.path(name), made.path(key));
        server.url("127.0.0.1", &format!("{PATIENT}&tls_cert={certificate}&tls_key={key}"))
    };
    works(&Client::connect(&own("client.crt", "client.key")).unwrap(), "m");
    let error = refusal(&server.url("127.0.0.1", PATIENT));
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
    let error = refusal(&own("stranger.crt", "stranger.key"));
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let text = error.to_string().to_lowercase();
    assert!(text.contains("unknownca") || text.contains("certificate"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let made = Certificates::get();
    made.write("broken.pem", "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n");
    made.write("empty.pem", "");
    let path = |name: &str| made.path(name);
    let (certificate, key) = (path("client.crt"), path("client.key"));
    for (parameters, says) in [
        (format!("tls_ca={}", path("missing.pem")), "missing.pem"),
        (format!("tls_ca={}", path("empty.pem")), "tls_ca"),
        (format!("tls_ca={}", path("broken.pem")), "tls_ca"),
        (format!("tls_ca={key}"), "tls_ca"),
        (format!("tls_cert={certificate}"), "tls_key"),
        (format!("tls_key={key}"), "tls_cert"),
        (format!("tls_cert={}&tls_key={key}", path("missing.pem")), "missing.pem"),
        (format!("tls_cert={certificate}&tls_key={}", path("empty.pem")), "empty.pem"),
        (format!("tls_cert={}&tls_key={key}", path("empty.pem")), "tls_cert"),
        (format!("tls_cert={certificate}&tls_key={}", path("server.key")), "belong together"),
        (format!("tls_cert={certificate}&tls_key={}", path("broken.pem")), "broken.pem"),
    ] {
        let parameters = match parameters.starts_with("tls_ca=") {
            true => parameters,
            false => format!("tls_ca={}&{parameters}", path("ca.crt")),
        };
        refused(&format!("rediss://127.0.0.1:1?{parameters}"), ErrorKind::Config, says);
    }
    refused("redis://127.0.0.1?tls_ca=/x", ErrorKind::Config, "tls_ca");
    // Line breaks were lost, as when a key was put into a variable and taken out of it: no part of it is
    // shown, not even as numbers.
    let whole = fs::read_to_string(&key).unwrap();
    let secret = whole.lines().nth(1).unwrap();
    for (name, text) in [
        ("spaces.key", whole.replace('\n', " ")),
        ("escaped.key", whole.replace('\n', "\\n")),
        ("first.key", whole.replacen('\n', "", 1)),
        ("last.key", whole.trim_end().replace("\n-----END", "-----END")),
    ] {
        made.write(name, &text);
        let parameters =
            format!("tls_ca={}&tls_cert={certificate}&tls_key={}", path("ca.crt"), path(name));
        let error = refusal(&format!("rediss://127.0.0.1:1?{parameters}")).to_string();
        assert!(error.contains(name) && error.len() < 400, "{error}");
        let numbers = format!("{:?}", &secret.as_bytes()[..8]);
        let numbers = numbers.trim_matches(['[', ']']);
        assert!(!error.contains(&secret[..8]) && !error.contains(numbers), "{error}");
    }
}

/// A server that accepts, and says nothing, or very little. For a minute, so that no other timeout
/// than this one can end it.
#[test]
fn the_handshake_ends_with_the_timeout_for_connecting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut drips = false;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            drips = !drips;
            thread::spawn(move || {
                let start = &[0x16, 3, 3, 0x40, 0, 2][..];
                for byte in start.iter().chain(&[0; 600]) {
                    if drips && stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let ca = Certificates::get().path("ca.crt");
    for _ in ["drips", "is silent"] {
        let url = format!(
            "rediss://{address}?tls_ca={ca}&connect_timeout=400ms&io_timeout=600s&outage=0.1s"
        );
        refused(&url, ErrorKind::Unreachable, "timed out");
    }
}

/// A handler of signals without SA_RESTART, as a program may have one.
#[test]
fn signals_do_not_break_a_handshake() {
    extern "C" fn ignore(_: libc::c_int) {}
    let server = Encrypted::start("server", &[]);
    // SAFETY: the handler does nothing; the action is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    // SAFETY: pthread_self always succeeds.
    let victim = unsafe { libc::pthread_self() } as usize;
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the thread waits for this one, so it exists.
                unsafe { libc::pthread_kill(victim as libc::pthread_t, libc::SIGUSR2) };
                thread::sleep(Duration::from_micros(200));
            }
        });
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..50 {
                let client = Client::connect(&server.url("127.0.0.1", PATIENT)).unwrap();
                drop(client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap());
            }
        }));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.unwrap();
    });
    works(&client(&server.redis), "m");
}
