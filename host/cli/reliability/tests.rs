use super::finding::Status;
use super::launches::{Launched, tasks};
use super::sanitizer::Coverage;
use super::*;
use cake_rmsnorm::kernels::KERNELS;
use cake_rmsnorm::plan::DeviceProperties;
use std::collections::BTreeSet;

fn launched(kernels: impl Iterator<Item = &'static str>) -> Launched {
    Launched {
        kernels: kernels.map(str::to_owned).collect(),
        ..Launched::default()
    }
}

#[test]
fn every_kernel_is_launched_by_a_task() {
    let small = DeviceProperties {
        sm_count: 108,
        compute_capability: (8, 0),
        shared_bytes_per_block: 163 << 10,
    };
    for device in [DeviceProperties::H200, small] {
        let tasks = tasks(&device);
        let mut kernels = BTreeSet::new();
        for task in &tasks {
            kernels.extend(task.kernels(&device).expect("a plan"));
        }
        let missing: Vec<&str> = KERNELS
            .iter()
            .map(|kernel| kernel.name)
            .filter(|name| !kernels.contains(name))
            .collect();
        assert!(missing.is_empty(), "of {} tasks: {missing:?}", tasks.len());
        println!("{} tasks, {} kernels", tasks.len(), kernels.len());
    }
}

#[test]
fn kernels_that_were_not_launched_are_named() {
    let names = || KERNELS.iter().map(|kernel| kernel.name);
    let (first, rest) = (launched(names().take(3)), launched(names().skip(2)));
    let all = Coverage::new(KERNELS, 90, &[&first, &rest]);
    assert_eq!(all.launched, KERNELS.len() as u64);
    assert!(all.missing.is_empty() && all.unlaunchable.is_empty());

    let rest = launched(names().skip(4));
    let some = Coverage::new(KERNELS, 90, &[&first, &rest]);
    assert_eq!(some.launched, KERNELS.len() as u64 - 1);
    assert_eq!(some.missing, [KERNELS[3].name]);

    let none = Coverage::new(KERNELS, 75, &[]);
    assert_eq!(none.unlaunchable.len(), KERNELS.len());
    assert!(none.missing.is_empty());
}

fn ended(status: Option<i32>, stdout: &str, stderr: &str) -> Ended {
    Ended {
        status,
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
        seconds: 1.0,
    }
}

#[test]
fn a_part_that_does_not_end_well_failed() {
    let said = r#"{"part":"cases","status":"PASS","what":"w","counts":[["n",1]],"reason":null,"seconds":0.1}"#;
    let failed = said.replace("PASS", "FAIL");
    let skipped = said.replace("PASS", "SKIPPED");
    let judge = |ended: Ended| -> Vec<Status> {
        let findings = findings_of(Part::Cases, &ended);
        findings.iter().map(|finding| finding.status).collect()
    };
    use Status::{Fail, Pass, Skipped};
    assert_eq!(judge(ended(Some(0), said, "")), [Pass]);
    assert_eq!(judge(ended(Some(0), &skipped, "")), [Skipped]);
    assert_eq!(judge(ended(Some(1), &failed, "")), [Fail]);
    // Ended here; a panic; a signal; nothing said; something else said.
    assert_eq!(judge(ended(None, said, "")), [Pass, Fail]);
    assert_eq!(judge(ended(Some(101), said, "panicked")), [Pass, Fail]);
    assert_eq!(judge(ended(Some(-1), said, "")), [Pass, Fail]);
    assert_eq!(judge(ended(Some(1), said, "")), [Pass, Fail]);
    assert_eq!(judge(ended(Some(0), "", "")), [Fail]);
    assert_eq!(
        judge(ended(Some(0), &format!("{said}\nwhat?"), "")),
        [Pass, Fail]
    );
    let findings = findings_of(Part::Cases, &ended(Some(101), said, "a\nthe reason\n"));
    assert!(findings[1].text().contains("the reason"), "{findings:?}");
}

#[cfg(unix)]
#[test]
fn a_process_that_hangs_is_ended() {
    let mut hangs = Command::new("sh");
    hangs.args(["-c", "echo first; exec sleep 60"]);
    let ended = process::run(&mut hangs, Duration::from_millis(300)).expect("a shell");
    assert_eq!((ended.status, &*ended.stdout), (None, "first\n"));
    assert!(ended.seconds < 30.0);
    // More than a pipe holds.
    let mut talks = Command::new("sh");
    talks.args(["-c", "head -c 1000000 /dev/zero; exit 3"]);
    let ended = process::run(&mut talks, Duration::from_secs(60)).expect("a shell");
    assert_eq!((ended.status, ended.stdout.len()), (Some(3), 1_000_000));
}
