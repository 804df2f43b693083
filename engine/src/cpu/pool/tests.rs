use std::sync::atomic::AtomicU32;

use super::*;

#[test]
fn every_task_runs_once_whatever_the_number_of_threads() {
    for threads in 1..5 {
        let mut pool = Pool::new(threads).expect("threads start");
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            pool.run(tasks, &|task, thread| {
                assert!(thread < threads);
                counts[task].fetch_add(1, Ordering::Relaxed);
            })
            .expect("no task panics");
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
    }
}

/// Jobs back to back and after pauses longer than the spin: workers join late, or are asleep.
#[test]
fn jobs_are_not_mixed_up() {
    let mut pool = Pool::new(3).expect("threads start");
    for round in 0..2000_u32 {
        if round.is_multiple_of(100) {
            thread::sleep(SPIN * 10);
        }
        let sum = AtomicU32::new(0);
        pool.run(5, &|task, _| {
            sum.fetch_add(round + task as u32, Ordering::Relaxed);
        })
        .expect("no task panics");
        assert_eq!(sum.into_inner(), 5 * round + 10);
    }
}

#[test]
fn a_panic_in_a_worker_is_an_error_and_not_a_hang() {
    let mut pool = Pool::new(2).expect("threads start");
    let panicked = (0..1000).any(|_| {
        let both = AtomicU32::new(0);
        pool.run(2, &|_, thread| {
            both.fetch_add(1, Ordering::Relaxed);
            // Holds the caller in its task until the worker has the other one, or has been given time enough.
            let start = Instant::now();
            while both.load(Ordering::Relaxed) < 2 && start.elapsed() < Duration::from_millis(50) {
                thread::yield_now();
            }
            assert!(thread == 0, "on purpose");
        })
        .is_err()
    });
    assert!(panicked);
}
