//! `memlock run` on two hosts that share a memcached and nothing else.
//!
//! These are the server's host and one at the other end of a cable, by network namespaces, each with
//! a host name and process numbers of its own; wake-ups go through the cable. Only root can make
//! them, with `ip` and `unshare`. Both write to the check's record.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use memlock_tests::cable::{self, Cable};
use memlock_tests::launch::poll_until;
use memlock_tests::safety::MARKER;
use memlock_tests::server::Memcached;

use crate::run::Folder;
use crate::tool::{PATIENCE, path};

/// What a host does: so many rounds, some of which outlast the lease, and in some of which
/// `memlock` is killed in the middle.
const HOST: &str = r#"
hostname "$HOST"
round=0
while [ $round -lt "$ROUNDS" ]; do
  round=$((round + 1))
  rm -f in
  case " $LONG $KILLED " in *" $round "*) work=6.5 ;; *) work=$BRIEF ;; esac
  "$MEMLOCK" run "$NAME" --lease 3s --timeout 60s -- sh -c "$SECTION" section $round $work &
  case " $KILLED " in *" $round "*)
    until [ -e in ]; do sleep 0.01; done
    kill -KILL $! ;;
  esac
  wait $!
  echo "$round $?" >>statuses
done
"#;

/// The lines are whole, and in the order in which they were written: each is one write to a file
/// that is only appended to.
const SECTION: &str = r#"
read up idle </proc/uptime
echo "in $HOST $1 $MEMLOCK_FENCE $up" >>"$RECORD"
: >in
sleep $2
read up idle </proc/uptime
echo "out $HOST $1 $MEMLOCK_FENCE $up" >>"$RECORD"
"#;

/// Longer than the lease of three seconds, and what the server adds to it.
const LONG: [u32; 1] = [30];
const KILLED: [u32; 2] = [50, 70];
/// The lease, less what the clock of the record rounds off.
const LEASE: f64 = 2.98;

struct World {
    server: Memcached,
    folder: Folder,
    cable: Cable,
}

impl World {
    fn new(name: &str) -> World {
        let cable = Cable::lay().unwrap();
        let server = Memcached::with_args(&["-l", cable.address()]);
        World { server, folder: Folder::new(name), cable }
    }

    fn record(&self) -> String {
        left(&self.folder.0, "record")
    }

    /// Starts the loop of a host, which is the near one or the far one.
    fn host(&self, name: &str, is_far: bool, variables: &[(&str, &str)]) -> Host {
        let own = self.folder.0.join(name);
        fs::create_dir_all(&own).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", HOST]);
        if is_far {
            cable::enter(&mut command, self.cable.namespace());
        }
        let url = format!("memcached://{}:{}", self.cable.address(), self.server.port());
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(&own).process_group(0);
        command
            .env("HOST", name)
            .env("SECTION", SECTION)
            .env("MEMLOCK", path())
            .env("MEMLOCK_URL", url);
        command.env("RECORD", self.folder.0.join("record")).env("TMPDIR", &own).env("HOME", &own);
        command.envs(variables.iter().copied()).stdin(Stdio::null());
        // The shell reports killed children.
        command.stderr(fs::File::create(own.join("said")).unwrap());
        Host { child: command.spawn().unwrap() }
    }
}

/// A host's loop, ended when it is dropped.
struct Host {
    child: Child,
}

impl Host {
    fn is_done(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the group is that of a child we have not buried, and of what it has started.
        unsafe {
            libc::killpg(
                libc::pid_t::try_from(self.child.id()).unwrap_or(libc::pid_t::MAX),
                libc::SIGKILL,
            )
        };
        let _ = self.child.wait();
    }
}

/// Reads the record: how many came in, and how many of them went out; or what is wrong. The lock of one
/// that was killed was granted after the last one was seen inside, and is free a lease later.
fn verdict_of(record: &str, may_be_killed: impl Fn(u32) -> bool) -> Result<(usize, usize), String> {
    let (mut ins, mut outs, mut newest, mut granted_after) = (0, 0, 0, 0.0);
    let (mut last_up, mut inside): (f64, Option<(&str, u32, u64)>) = (0.0, None);
    for line in record.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [what, host, round, fence, up] = fields[..] else {
            return Err(format!("no such line: {line}"));
        };
        let (round, fence, up) =
            (round.parse().unwrap(), fence.parse().unwrap(), up.parse().unwrap());
        // On a slow machine the lease of one that is killed may end before it is inside.
        let killed_inside = inside.is_some_and(|(_, round, ..)| may_be_killed(round));
        let is_of_time = may_be_killed(round) || killed_inside;
        let marker = if is_of_time { "" } else { MARKER };
        match (what, inside) {
            ("in", Some((_, round, _))) if !may_be_killed(round) || up - granted_after < LEASE => {
                return Err(format!("{marker}{line}: while {inside:?} was in"));
            }
            ("in", _) if fence <= newest => {
                return Err(format!("{marker}{line}: after the fence {newest}"));
            }
            ("in", _) => {
                (ins, newest) = (ins + 1, fence);
                inside = Some((host, round, fence));
                granted_after = last_up;
            }
            ("out", Some((host_in, round_in, fence_in)))
                if (host, round, fence) == (host_in, round_in, fence_in) =>
            {
                outs += 1;
                inside = None;
            }
            _ => return Err(format!("{line}: while {inside:?} was in")),
        }
        last_up = up;
    }
    Ok((ins, outs))
}

fn list(rounds: &[u32]) -> String {
    rounds.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// What a host has left in its folder.
fn left(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap_or_default()
}

#[test]
#[ignore = "real time: make prove"]
fn two_hosts_on_one_name_never_overlap_in_200_rounds() {
    const ROUNDS: u32 = 100;
    let world = World::new("hosts");
    let (long, killed, rounds) = (list(&LONG), list(&KILLED), ROUNDS.to_string());
    let variables = [
        ("NAME", "job"),
        ("ROUNDS", &rounds),
        ("BRIEF", "0.01"),
        ("LONG", &long),
        ("KILLED", &killed),
    ];
    let names = ["near", "far"];
    let mut hosts = names.map(|name| world.host(name, name == "far", &variables));
    let are_done = || hosts.iter_mut().all(Host::is_done).then_some(());
    poll_until(6 * PATIENCE, are_done).expect("both hosts are done");
    for name in names {
        let own = world.folder.0.join(name);
        let wanted = (1..=ROUNDS).fold(String::new(), |wanted, round| {
            format!("{wanted}{round} {}\n", if KILLED.contains(&round) { 137 } else { 0 })
        });
        assert_eq!(left(&own, "statuses"), wanted, "{name} said: {}", left(&own, "said"));
    }
    let all = 2 * ROUNDS as usize;
    assert_eq!(
        verdict_of(&world.record(), |round| KILLED.contains(&round)),
        Ok((all, all - 2 * KILLED.len()))
    );
}

#[test]
fn the_judge_allows_for_a_kill_only_after_the_lease() {
    let killed = |round| round == 2;
    let record =
        |up: f64| format!("in a 1 10 5.00\nout a 1 10 5.00\nin a 2 11 6.00\nin b 1 12 {up}\n");
    assert_eq!(verdict_of(&record(9.1), killed), Ok((3, 1)));
    assert!(
        verdict_of(&record(6.1), killed).is_err() && verdict_of(&record(9.1), |_| false).is_err()
    );
    assert!(
        verdict_of("in a 1 10 5.00\nout a 1 10 5.00\nin b 1 9 6.00\n", killed).is_err(),
        "an older fence"
    );
}
