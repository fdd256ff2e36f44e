//! A full disk.

use memlock_core::ErrorKind;
use memlock_tests::disk::Disk;
use memlock_tests::launch::give;

use crate::{LEASE, Place, alone, is_free};

#[test]
fn a_full_disk_is_named_and_grants_nothing() {
    let disk = match Disk::mount() {
        Ok(disk) => disk,
        // SAFETY: geteuid always succeeds.
        Err(why) if unsafe { libc::geteuid() } != 0 => {
            println!("Only root can mount a small disk: {why}");
            return;
        }
        Err(why) => panic!("{why}"),
    };
    give(disk.path());
    let server = alone();
    let place = Place::on(&server);
    let client = place.client("durable=no");
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    server.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.path().display()));
    server.sql(&format!("ALTER TABLE {}.items SET TABLESPACE small", place.name));
    disk.fill();
    let mut granted_before = Vec::new();
    let refused = (0..10_000).find_map(|number| {
        let granted = client.mutex(format!("lock {number}"), LEASE).unwrap().try_lock();
        match granted {
            Ok(lock) => {
                granted_before.push(lock.unwrap());
                None
            }
            Err(error) => Some((number, error)),
        }
    });
    let (number, error) = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert!(is_free(&client, &format!("lock {number}")));
    assert!(lock.check().unwrap());
    assert!(number == 0 || !is_free(&client, "lock 0"));
    // An update needs room as well, which the page itself has.
    let _ = lock.unlock();
    // Nothing of the server may be left there.
    disk.empty();
    server.sql(&format!("DROP SCHEMA {} CASCADE", place.name));
    server.sql("DROP TABLESPACE small");
}
