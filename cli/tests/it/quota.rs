//! `penstock quota`: which store is meant, and what cannot be looked into. Audits of real books are made by the
//! end-to-end tests.

use crate::penstock::Penstock;

#[test]
fn the_embedded_store_points_to_the_metrics() {
    let penstock = Penstock::new();
    let yaml = "models: [ { name: m, upstreams: [ { name: a, url: \"http://127.0.0.1:9/v1\" } ] } ]\n\
                keys: [ { secret: sk-1, org: acme } ]\nstore: memory\n";
    let file = penstock.file("p.yaml", yaml.as_bytes());
    penstock.run(["quota", "show", "--config", file.to_str().unwrap()]).failed(1, &["store: memory", "/metrics"]);
}

#[test]
fn a_store_that_is_not_there_is_told() {
    penstock_without_redis("show");
    penstock_without_redis("check");
}

fn penstock_without_redis(command: &str) {
    Penstock::new().run(["quota", command, "--store", "redis://127.0.0.1:1/0"]).failed(1, &["store"]);
}
