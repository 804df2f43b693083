//! The engine run, against a mock whose speed is known.

use bench::{
    engine,
    mock::{Mock, Options, Settings},
};

#[test]
fn aggregate_speed_grows_with_the_streams_and_is_the_mock_s() {
    // 40 tokens each, the first after 50 ms and one each 10 ms: 440 ms.
    let settings = Settings { ttft_ms: 50, itl_ms: 10, chunks: 1000, ..Settings::default() };
    let mock = Mock::start(Options { settings, ..Options::default() }).unwrap();
    let options = engine::Options {
        streams: vec![1, 8],
        repetitions: 1,
        max_tokens: 40,
        ..engine::Options::new(mock.address(), "m")
    };
    let report = engine::run(&options, &mut |_| {}).unwrap();
    let figure = |row: usize, column: usize| report.sections[0].rows[row].cells[column].unwrap().median;
    let near = |got: f64, want: f64| got > want * 0.7 && got < want * 1.05;
    assert!(near(figure(0, 0), 40.0 / 0.44), "{}", report.render());
    assert!(near(figure(1, 0), 320.0 / 0.44), "{}", report.render());
    assert!(near(figure(1, 1), 312.0 / 0.39), "{}", report.render());
    let prompts: std::collections::HashSet<String> =
        mock.requests().iter().map(|r| r.json()["prompt"].to_string()).collect();
    assert_eq!(prompts.len(), 1 + 1 + 8, "no two prompts are alike");
}

#[test]
fn a_failing_engine_is_an_error() {
    let mock = Mock::start(Options { settings: Settings { status: 500, ..Settings::default() }, ..Options::default() })
        .unwrap();
    let error = engine::run(&engine::Options::new(mock.address(), "m"), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("status 500"), "{error}");
}

#[test]
fn an_engine_that_is_not_there_is_waited_for_and_named() {
    let mock = Mock::start(Options::default()).unwrap();
    let address = mock.address();
    drop(mock);
    let ready_within = std::time::Duration::from_millis(300);
    let options = engine::Options { ready_within, ..engine::Options::new(address, "m") };
    let began = std::time::Instant::now();
    let error = engine::run(&options, &mut |_| {}).unwrap_err();
    assert!(began.elapsed() >= ready_within && error.to_string().contains("not ready"), "{error}");
}
