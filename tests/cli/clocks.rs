//! `memlock doctor` on servers whose clocks differ: from ours, and from those of their replicas.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use memlock_tests::certificate::certify;
use memlock_tests::launch::{ReservedPort, give, until};
use memlock_tests::mysql::MariaDb;
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;
use memlock_tests::url;
use memlock_tests::wrong_clock::shift;
use serde_json::Value;

use crate::doctor::{examined, finding};
use crate::run::Folder;
use crate::stores::redis::Redis;
use crate::tool::{done, memlock_at};

/// Where the fakes say that they are.
const LOOPBACK: &str = "127.0.0.1";

/// By how many seconds clocks are wrong, and how that is shown, also if the machine stops for a few
/// seconds while they are read.
const WRONG: i64 = 3 * 3600 + 30;
const SHOWN: &str = "3 h 0 min";

/// The finding has this verdict, and all these words are in what it says and what to do.
#[track_caller]
fn says(report: &Value, what: &str, verdict: &str, words: &[&str]) {
    let finding = finding(report, what);
    assert_eq!(finding["verdict"], verdict, "{report}");
    let text = format!("{} {}", finding["said"], finding["mend"]);
    for words in words {
        assert!(text.contains(words), "{words:?} is missing: {finding}");
    }
}

/// The server is reported to be behind a host whose clock is ahead.
#[track_caller]
fn is_behind_a_host_that_is_ahead(url: &str) {
    says(&examined(url, &[]).1, "clock", "ok", &["agrees with ours"]);
    let mut doctor = memlock_at(url, &["doctor", "--json"]);
    shift(&mut doctor, WRONG);
    let meaning = "fences can fall after a failover between servers whose clocks differ";
    says(
        &done(doctor).json(),
        "clock",
        "note",
        &[&format!("{SHOWN} behind ours"), "leases do not mind", meaning],
    );
}

fn until_replicas(server: &Redis, count: usize) {
    until("the replicas are in step", || {
        let info: String = server.reply(&["INFO", "replication"]);
        info.matches("state=online").count() == count
    });
}

fn replica_of(primary: &Redis, ahead: i64) -> Redis {
    let primary = format!("127.0.0.1 {}", primary.process().port());
    Redis::with_clock(ahead, &["--replicaof", &primary, "--repl-diskless-sync-delay", "0"])
}

#[test]
fn the_clocks_of_a_redis_and_its_replicas_are_compared() {
    let primary = Redis::start(&["--repl-diskless-sync-delay", "0", "--unixsocket", "socket"]);
    is_behind_a_host_that_is_ahead(&primary.url());
    let right = replica_of(&primary, 0);
    until_replicas(&primary, 1);
    let twice = "a failover can grant a lock twice";
    let words = [twice, "its clock agrees with this server's within 1 s"];
    says(&examined(&primary.url(), &[]).1, "replicas", "warning", &words);
    // Replicas are asked with the password of the primary.
    let wrong = replica_of(&primary, -WRONG);
    until_replicas(&primary, 2);
    for server in [&primary, &right, &wrong] {
        let () = server.reply(&["CONFIG", "SET", "requirepass", "geheim"]);
    }
    let of = |server: &Redis| server.url().replace("redis://", "redis://:geheim@");
    let (code, report) = examined(&of(&primary), &[]);
    assert_eq!(code, Some(1), "{report}");
    let behind = format!(
        "the clock of {} is {SHOWN} behind this server's: after a failover to it, fences can fall",
        wrong.process().address()
    );
    let words = [twice, "the clock of one agrees", &behind, "run an NTP client on the hosts"];
    says(&report, "replicas", "warning", &words);
    says(&report, "clock", "ok", &[]);
    let (code, report) = examined(&of(&wrong), &[]);
    assert_eq!(code, Some(2), "{report}");
    says(&report, "role", "bad", &[]);
    says(&report, "clock", "note", &[&format!("{SHOWN} behind ours")]);
    // A password for a Unix socket is not sent over the network.
    let socket = primary.directory().join("socket");
    let of_socket = url::patient(&format!("redis+unix://{}?password=geheim", socket.display()));
    let words = ["could not be compared (it is not dialled", "redis-cli TIME"];
    says(&examined(&of_socket, &[]).1, "replicas", "warning", &words);
}

/// A connection by which the server takes a replica to be at this address.
fn named(server: &Redis, host: &str, port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(server.process().address()).unwrap();
    write!(stream, "REPLCONF listening-port {port} ip-address \"{host}\"\r\n").unwrap();
    stream.read_exact(&mut [0; "+OK\r\n".len()]).unwrap();
    write!(stream, "PSYNC ? -1\r\n").unwrap();
    let line = format!("port={port},");
    until("the server lists it", || {
        server.reply::<String>(&["INFO", "replication"]).contains(&line)
    });
    stream
}

#[test]
fn replicas_that_cannot_be_asked_are_reported_and_stop_nothing() {
    let (server, stranger) = (Redis::start(&[]), Redis::start(&[]));
    let (nobody, silent) = (ReservedPort::any(), TcpListener::bind("127.0.0.1:0").unwrap());
    let silent = silent.local_addr().map(|address| (address.port(), silent)).unwrap();
    let mut open = vec![
        named(&server, LOOPBACK, nobody.number()),
        named(&server, LOOPBACK, silent.0),
        named(&server, LOOPBACK, stranger.process().port()),
        named(&server, "a\\x1b[2J\\x07/etc", 4),
        named(&server, "no.such.host.invalid", 5),
    ];
    open.extend((6..10).map(|port| named(&server, "/", port)));
    let url = url::with(&server.url(), "connect_timeout=20s&io_timeout=5s");
    let (code, report) = examined(&url, &[]);
    assert_eq!(code, Some(1), "{report}");
    let could_not = |port: u16, why: &str| format!("127.0.0.1:{port} could not be compared ({why}");
    says(
        &report,
        "replicas",
        "warning",
        &[
            "9: replication is asynchronous",
            &could_not(nobody.number(), "It cannot be connected to (Connection refused"),
            &could_not(silent.0, "The server did not answer within 5s"),
            &could_not(
                stranger.process().port(),
                "the server there is not, or not yet, its replica",
            ),
            "the clock of slave3 could not be compared (the server names no address",
            "the clock of no.such.host.invalid:5 could not be compared (The host name",
            "1 other clocks were not compared",
            "redis-cli TIME",
        ],
    );
    says(&report, "clock", "ok", &[]);
}

/// The replicas that the server names are all the server itself.
#[test]
fn replicas_are_asked_over_tls_as_the_primary_is() {
    let folder = Folder::new("redis-tls");
    give(&folder.0);
    certify(&folder.0);
    let file = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (certificate, port) = (file("server.crt"), ReservedPort::any());
    let args = format!(
        "--tls-port {} --tls-cert-file {certificate} --tls-key-file {} --tls-ca-cert-file {certificate} \
         --tls-auth-clients no",
        port.number(),
        file("server.key")
    );
    let server = Redis::start(&args.split(' ').collect::<Vec<_>>());
    let _open =
        [named(&server, "localhost", port.number()), named(&server, LOOPBACK, port.number())];
    let place = format!("localhost:{}?tls_ca={certificate}", port.number());
    let (_, report) = examined(&url::patient(&format!("rediss://{place}")), &[]);
    let agrees = "the clock of one agrees with this server's within 1 s";
    let untrusted = format!(
        "the clock of {LOOPBACK}:{} could not be compared (It accepts no TLS connection that memlock trusts",
        port.number()
    );
    says(&report, "replicas", "warning", &["2: ", agrees, &untrusted]);
}

#[test]
fn the_clocks_of_a_postgresql_and_its_standbys_are_compared() {
    let primary = Postgresql::start();
    is_behind_a_host_that_is_ahead(&primary.url());
    let standby = primary.standby(-WRONG);
    let (code, report) = examined(&primary.url(), &[]);
    assert_eq!(code, Some(1), "{report}");
    let behind = "the last reply of walreceiver at 127.0.0.1 is dated";
    let (fences, mend) = ("after a failover to it, fences can fall", "run an NTP client");
    says(&report, "replicas", "warning", &["can grant a lock twice", behind, fences, mend]);
    let (code, report) = examined(&standby.url(), &[]);
    assert_eq!(code, Some(2), "{report}");
    says(&report, "role", "bad", &[]);
    says(&report, "clock", "note", &[&format!("{SHOWN} behind ours")]);
    // Not all users see the replies.
    primary.sql("CREATE ROLE plain LOGIN");
    let url = primary.url().replace("memlock@", "plain@");
    let hidden = ["this user may not see their clocks", "GRANT pg_read_all_stats TO this user"];
    says(&examined(&url, &[]).1, "replicas", "warning", &hidden);
    primary.sql("GRANT pg_read_all_stats TO plain");
    says(&examined(&url, &[]).1, "replicas", "warning", &[behind]);
}

#[test]
fn the_clock_of_a_mysql_is_compared() {
    is_behind_a_host_that_is_ahead(&MariaDb::start_fast().url());
}
