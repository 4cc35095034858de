use super::*;

/// A daemon without volumes, in a folder that is removed at the end of the test.
fn started(name: &str) -> (PathBuf, Service) {
    let folder = std::env::temp_dir().join(format!("lunar-daemon-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let text = "[server]\ncores = 2\nmemory = '8M'\ndriver = 'epoll'\ndrain = '100ms'\n";
    std::fs::write(folder.join("lunar.toml"), text).expect("a file");
    let service = Service::start(&folder.join("lunar.toml"), Some(&folder.join("state")), || false).expect("it starts");
    (folder, service)
}

#[test]
fn a_change_that_does_not_end_keeps_no_core_from_its_end() {
    let (folder, service) = started("stuck");
    let cores = service.cores.clone();
    let (release, released) = mpsc::channel::<()>();
    assert!(service.control().post(move |_| _ = released.recv()));
    let why = service.end_within(Duration::from_millis(50)).expect_err("it is stuck");
    assert!(why.to_string().contains("does not end"), "{why}");
    assert_eq!(cores.ask_all(|_| std::future::ready(())).len(), 0, "a core is there");
    drop(release);
    std::fs::remove_dir_all(folder).expect("it is ours");
}

#[test]
fn a_state_folder_has_one_daemon() {
    let (folder, service) = started("held");
    let hold = || lunar_engine::host::StateLock::take(&folder.join("state"), Duration::ZERO);
    let why = hold().expect_err("it runs").to_string();
    assert!(why.contains("state folder of another lunar daemon"), "{why}");
    service.end().expect("it ends");
    hold().expect("it is free");
    std::fs::remove_dir_all(folder).expect("it is ours");
}

#[test]
fn what_is_away_is_waited_for_and_told_once() {
    let is_over = AtomicBool::new(false);
    let mut again = patient(UNAVAILABLE_INTERVAL * 3, || is_over.load(Ordering::Relaxed));
    let (disk, other) = (ObjectId::volume("disk"), ObjectId::volume("other"));
    let start = Instant::now();
    let why = TargetError::new(io::Error::other("it is away"));
    assert!(again(&disk, &why) && again(&other, &why));
    while again(&disk, &why) {}
    assert!(start.elapsed() >= UNAVAILABLE_INTERVAL * 3 && !again(&other, &why));
    // On a stop signal, the start no longer waits.
    let mut again = patient(Duration::from_secs(3600), || is_over.load(Ordering::Relaxed));
    assert!(again(&disk, &why));
    is_over.store(true, Ordering::Relaxed);
    assert!(!again(&disk, &why));
}

#[test]
fn the_file_is_followed_on_a_thread_of_its_own() {
    let (folder, service) = started("follows");
    let (release, released) = mpsc::channel::<()>();
    assert!(service.control().post(move |_| _ = released.recv()));
    let ask = follow(service.control().clone(), Notify::default(), folder.join("lunar.toml")).expect("a thread");
    // The first waits for the control thread, the second for the first, and what else is asked for comes with that.
    ask.send(()).expect("it is there");
    ask.send(()).expect("it is there");
    assert!(ask.try_send(()).is_err_and(|why| matches!(why, mpsc::TrySendError::Full(()))));
    drop(release);
    drop(ask);
    service.end().expect("it ends");
    std::fs::remove_dir_all(folder).expect("it is ours");
}
